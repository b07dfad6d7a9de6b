"""The message of the task that runs here, and our header in it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from celery._state import get_current_worker_task
from celery.backends.base import DisabledBackend
from celery.canvas import Signature
from celery.exceptions import Reject

from django_tasklock.celery.broker import redelivery_timeout
from django_tasklock.celery.canvas import is_member
from django_tasklock.names import present_tenant
from django_tasklock.types import monotonic

HEADER = "tasklock"
"""The name of our message header, a dict of plain values. ``key``: the lock's name, computed on publication."""
RECEIVED = "tasklock_received"
"""The request attribute with the monotonic time at which the worker's main process received the message."""
LINE = "line"
"""The field of our header with the ``on_conflict`` of a message that is to get a sequence number. It is not sent."""
DIED = "tasklock_died"
"""The field of our header with the try for which ``after_death`` holds; and the header by which the sweep sets it."""
REPLACEMENT_STEP = 1_000_000  # greater than any number of retries
EARLIEST_REDELIVERY = 0.1
"""Seconds within which no broker redelivers a message; below that Celery's settings, slow to read, are not read."""


class Message:
    """A delivery of a task's message to this worker. ``request``: by default the task's current one."""

    def __init__(self, task: Any, request: Any = None) -> None:
        self.task = task
        self.request = task.request if request is None else request
        self.id: str = self.request.id
        self.retries: int = self.request.retries or 0
        self.try_number = try_number(self.request)
        self.header: dict[str, Any] = header_of(self.request)
        """Our header, as the publisher wrote it."""
        self.is_continuation = self.retries > 0 or bool(self.header.get("page"))
        """Whether its work has begun already: it is a retry, or the next page of a task that replaced itself."""
        put_back = self.header.get("put_back") or (0, 0)
        self.sent = int(put_back[0]) if put_back[1] == self.retries else 0
        """How often it had been put back into the broker from the table of parked messages; 0: it comes from its
        publisher.

        The number counts for one try only: ``retry()`` sends a new message.
        """
        self.acks_late = bool(task.acks_late)
        """Whether it is acknowledged after its run, so that it is redelivered if this worker dies."""
        self.again = self.header.get("again") == self.retries
        """Whether another delivery of this try was met, or known of when it was sent again."""
        self._was_buffered = self._was_buffered_long()

    @property
    def delivered_before(self) -> bool:
        """Whether it may have been delivered before, or elsewhere meanwhile, as far as is known yet."""
        return bool(self.sent or self.may_be_restarted or self._was_buffered)

    @property
    def after_death(self) -> bool:
        """Whether the sweep has published it because a worker that had begun the same work died."""
        return self.header.get(DIED) == self.retries

    @property
    def may_be_restarted(self) -> bool:
        """Whether it may have been started before: not by its mere promotion."""
        return self.again or self.redelivered or self.sent > 1 or self.after_death

    @property
    def redelivered(self) -> bool:
        """Whether the broker says that an earlier delivery was not acknowledged."""
        return bool((self.request.delivery_info or {}).get("redelivered"))

    @property
    def was_put_off(self) -> bool:
        """Whether this try was put off because of an error that kept its body from beginning."""
        return bool((self.header.get("put_off") or (0, -1))[1] == self.retries)

    @property
    def is_from_transaction(self) -> bool:
        """Whether it was published inside of ``atomic()``, so that it may have overtaken the commit of its row."""
        return self.header.get("uncommitted") == self.retries and not self.may_be_restarted

    @property
    def seconds_buffered(self) -> float:
        """Seconds since this worker received the message, which may have been in its buffer; 0 if unknown."""
        received = getattr(self.request, RECEIVED, None)
        return 0.0 if received is None else max(0.0, monotonic() - received)

    @property
    def published(self) -> float | None:
        """The time at which this try was published, seconds since 1970 by its publisher's clock, if recorded."""
        at = self.header.get("at") or (None, 0)
        return at[0] if at[1] == self.retries else None

    def _was_buffered_long(self) -> bool:
        """Return whether it was buffered here so long that the broker may have redelivered it, or may do so soon."""
        seconds_buffered = self.seconds_buffered
        return seconds_buffered > EARLIEST_REDELIVERY and seconds_buffered > redelivery_timeout(self.task.app) / 2

    def will_be_redelivered(self, error: BaseException | None) -> bool:
        """Return whether the broker redelivers this message after ``error``: the worker stops, or requeues it."""
        if isinstance(error, Reject):
            return self.acks_late and bool(getattr(error, "requeue", False))
        return self.acks_late and error is not None and not isinstance(error, Exception)

    @property
    def in_canvas(self) -> bool:
        """Whether a group or a chord waits for its result, or for that of what follows it."""
        return is_member(self.request)

    @property
    def is_awaited(self) -> bool:
        """Whether Celery does something with its end that others wait for: stores it, or sends what follows."""
        request = self.request
        follows = request.callbacks or request.errbacks or request.chain or request.chord
        return bool(follows) or (self.wants_result and not isinstance(self.task.backend, DisabledBackend))

    @property
    def wants_result(self) -> bool:
        """Whether its states and result are stored: as its caller says, or else its task."""
        ignored = vars(self.request).get("ignore_result")  # its class says False where the caller says nothing
        return not (self.task.ignore_result if ignored is None else ignored)

    def carry(self, **fields: Any) -> None:
        """Set fields of our header in this delivery."""
        if fields:
            self.header = bind_header({**self.header, **fields}, self.task.name, self.id)
            self.request.__dict__[HEADER] = self.header

    def to_signature(self, *, countdown: float | None = None, **header: Any) -> Signature[Any]:
        """Return a signature that sends the message again after ``countdown`` seconds, as the same try."""
        header["again"] = self.retries if self.may_be_restarted else None
        header.setdefault("put_off", None)  # whatever it is sent for now, what it was put off for is over
        our_header = {key: value for key, value in {**self.header, **header}.items() if value is not None}
        # Celery sends this on only from 5.7.
        options: dict[str, Any] = {"ignore_result": not self.wants_result}
        if countdown is not None:
            options["countdown"] = countdown
        headers = {**headers_to_resend(self.request), HEADER: bind_header(our_header, self.task.name, self.id)}
        return self.task.signature_from_request(  # type: ignore[no-any-return]
            self.request, headers=headers, retries=self.retries, **options
        )


def left_mark(task: str, task_id: str) -> str:
    """Return what a message leaves in a row, in place of a token, when its body was stopped from outside."""
    return f"left:{hashlib.sha256(f'{task}:{task_id}'.encode()).hexdigest()[:27]}"


def try_number(request: Any) -> int:
    """Return a number that grows with each try of a request's task. ``replace()`` starts the retries at 0 again."""
    return (getattr(request, "replaced_task_nesting", 0) or 0) * REPLACEMENT_STEP + (request.retries or 0)


def header_of(request: Any) -> dict[str, Any]:
    """Return our header of a worker's or an eager request; empty if it is missing or belongs to another message."""
    found = getattr(request, HEADER, None) or (getattr(request, "headers", None) or {}).get(HEADER)
    if not isinstance(found, dict):
        return {}
    return found if is_header_for(found, getattr(request, "task", None), request.id) else {}


def headers_to_resend(request: Any) -> dict[str, Any]:
    """Return the headers of a message as they are sent again, without those of RabbitMQ's dead-lettering.

    A message with a countdown passes through queues that it leaves by expiring. By these headers RabbitMQ takes it for
    one that goes round in a circle, and drops it, when it comes to the same queue with its next countdown.
    """
    headers = request.headers or {}
    return {
        key: value
        for key, value in headers.items()
        if not key.startswith(("x-death", "x-first-death-", "x-last-death-"))
    }


def bind_header(header: Mapping[str, Any], task: Any, task_id: Any) -> dict[str, Any]:
    """Return our header bound to this message, so that it is ignored if it is copied to another one."""
    return {**header, "of": [task, task_id]}


def tenant_header() -> dict[str, Any]:
    """Return the part of a new message's header that says whose locks its task takes; empty without tenants."""
    tenant = present_tenant()
    return {"tenant": tenant} if tenant else {}


def is_header_for(header: Any, task: object, task_id: object) -> bool:
    """Return whether our header was written for this message. ``task``: its name; if not a text, any matches."""
    if not isinstance(header, dict) or not isinstance(header.get("of"), list | tuple) or len(header["of"]) != 2:
        return False
    bound_task, bound_id = header["of"]
    return bool(bound_id == task_id and (bound_task == task or not isinstance(task, str)))


def predecessor_request(task: object, task_id: object, name: object = None) -> Any:
    """Return the current request if this message continues it, with the same task and id; otherwise ``None``.

    The message is a retry, a deferred one, or the next page of a task that replaces itself (``replace()``). ``name``:
    only if the request's header names the same lock.
    """
    here: Any = get_current_worker_task()
    if here is None or (here.name, here.request.id) != (task, task_id):
        return None
    return here.request if name is None or header_of(here.request).get("key") == name else None


def hide_header(sender: Any = None, **details: Any) -> None:
    """Move our header out of ``self.request.headers``, which bodies send on, for tenants. For ``task_prerun``."""
    request = sender.request
    if HEADER in request.__dict__ or HEADER in (request.headers or {}):
        request.__dict__[HEADER] = header_of(request)
    seen = request.headers or {}
    if HEADER in seen or RECEIVED in seen:
        theirs = {key: value for key, value in seen.items() if key not in (HEADER, RECEIVED)}
        request.headers = theirs or None  # as in Celery where the publisher gave none
