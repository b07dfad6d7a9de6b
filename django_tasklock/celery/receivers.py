"""The doors between Celery and the core: its signals, and what knows which task runs."""

from __future__ import annotations

import time
from importlib.util import find_spec
from typing import Any

from celery import current_app, signals
from celery._state import get_current_task, get_current_worker_task
from celery.app.task import Task

from django_tasklock import host
from django_tasklock.celery import unique
from django_tasklock.celery.delivery import cleanup, postrun
from django_tasklock.celery.delivery.nested import MapElementCall, NestedCall, is_element
from django_tasklock.celery.delivery.permits import PermitTaskCall, limits_body
from django_tasklock.celery.delivery.run import TaskCall
from django_tasklock.celery.host import LockAttribute, noting_replacement, task_here, will_retry
from django_tasklock.celery.message import HEADER, RECEIVED, header_of, hide, page_before, sealed_for, written_for
from django_tasklock.celery.misplaced import refuse_of_another
from django_tasklock.celery.parking import order
from django_tasklock.celery.parking.promotion import Promoter
from django_tasklock.celery.parking.refused import on_refused
from django_tasklock.celery.rates import reservations
from django_tasklock.celery.rates.reservations import RATE
from django_tasklock.celery.rates.spread import pop_published_reservation
from django_tasklock.celery.rates.turns import take_turn
from django_tasklock.celery.task import OnceTask
from django_tasklock.conf import get_settings
from django_tasklock.decorators.concurrency import PermitOfCall
from django_tasklock.exceptions import CrashLoop, StaleClaim
from django_tasklock.locks.heartbeat import heartbeat
from django_tasklock.types import monotonic

CELERYS_REQUEST = "celery.worker.request:Request"
"""The class of requests in a worker's main process, where a task does not say otherwise."""
_promoters: list[Promoter] = []


def install() -> None:
    """Teach the core about Celery, and Celery about us. Called once."""
    host.install(CeleryHost())
    if Task.Request == CELERYS_REQUEST:
        Task.Request = "django_tasklock.celery.request:Request"
    Task.on_bound = classmethod(refuse_of_another)  # type: ignore[method-assign,assignment]  # Celery's does nothing
    Task.on_replace = noting_replacement(Task.on_replace)  # type: ignore[method-assign]
    if "lock" not in vars(Task):
        Task.lock = LockAttribute()  # type: ignore[attr-defined]
    if not hasattr(Task, "dont_autoretry_for"):  # a task's own option replaces it
        Task.dont_autoretry_for = (StaleClaim, CrashLoop)  # type: ignore[attr-defined]  # no retry mends it
    signals.before_task_publish.connect(stamp, weak=False, dispatch_uid="tasklock.stamp")
    signals.task_prerun.connect(hide, weak=False, dispatch_uid="tasklock.hide")
    signals.task_received.connect(note_arrival, weak=False, dispatch_uid="tasklock.received")
    signals.task_postrun.connect(postrun.on_postrun, weak=False, dispatch_uid="tasklock.postrun")
    signals.task_postrun.connect(unique.on_postrun, weak=False, dispatch_uid="tasklock.unique")
    signals.task_received.connect(cleanup.on_received, weak=False, dispatch_uid="tasklock.ending")
    signals.task_failure.connect(cleanup.on_failure, weak=False, dispatch_uid="tasklock.failure")
    signals.task_postrun.connect(reservations.on_postrun, weak=False, dispatch_uid="tasklock.unused")
    signals.task_revoked.connect(cleanup.on_revoked, weak=False, dispatch_uid="tasklock.revoked")
    signals.task_unknown.connect(on_refused, weak=False, dispatch_uid="tasklock.unknown")
    signals.task_rejected.connect(on_refused, weak=False, dispatch_uid="tasklock.refused")
    signals.worker_init.connect(begin_renewing, weak=False, dispatch_uid="tasklock.messages")
    signals.worker_ready.connect(begin_promoting, weak=False, dispatch_uid="tasklock.ready")
    signals.worker_shutting_down.connect(end_promoting, weak=False, dispatch_uid="tasklock.end")
    signals.worker_process_shutdown.connect(flush_heartbeat, weak=False, dispatch_uid="tasklock.child")
    if find_spec("opentelemetry") is not None:
        from django_tasklock.celery import tracing

        tracing.install()


class CeleryHost(host.Host):
    """The host that knows which task runs, and runs what is decorated as a part of it."""

    runs_task: Any = staticmethod(get_current_worker_task)

    def current_task(self) -> host.Task | None:
        """Return the task that runs in this thread: the published one, whatever it calls directly."""
        return task_here()

    def will_retry(self, error: BaseException) -> bool:
        """Tell whether Celery runs the task again after ``error``."""
        return will_retry(error)

    def strategy_for(self, decorated: object, plain: Any) -> Any:
        """Return the strategy of a call: of the body of the task that a worker runs, inside of it, or ``plain``."""
        if isinstance(decorated, PermitOfCall):
            return PermitTaskCall if limits_body(decorated) else plain
        task: Any = get_current_worker_task()
        if task is None or not task.request.id or task.request.is_eager:
            return plain
        here: Any = get_current_task()
        if getattr(getattr(here, "run", None), "lock", None) is not decorated:
            return NestedCall
        return TaskCall if here is task else MapElementCall if is_element(here) else NestedCall

    def take_turn(self, limit: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Wait for the turn of the task that a worker runs, in the broker if it is far off."""
        return take_turn(limit, args, kwargs)


def stamp(sender: Any = None, headers: Any = None, body: Any = None, **details: Any) -> None:
    """Note in a message of ours when it is published; for a decorated task that lines up, draw its number as well."""
    task = current_app.tasks.get(sender)
    locked = None if task is None else getattr(task.run, "lock", None)
    reservation = pop_published_reservation()
    if not isinstance(headers, dict):
        return
    fields = body if isinstance(body, dict) else headers  # Celery's own: by protocol 1 they are in the body
    ours = _brought(sender, headers, fields)
    if locked is None and reservation is None and not ours:
        return
    ours = headers[HEADER] = sealed_for(ours, sender, fields.get("id"))
    if reservation is not None:
        ours[RATE] = reservation
    retries = fields.get("retries") or 0
    if (ours.get("at") or (0, -1))[1] != retries:
        ours["at"] = (time.time(), retries)
    before = page_before(sender, fields.get("id"))
    if before is not None and (fields.get("replaced_task_nesting") or 0) > (before.replaced_task_nesting or 0):
        ours["page"] = True  # not if it is only put off
    word = None if locked is None else locked.on_conflict or get_settings().ON_CONFLICT
    if word in ("queue", "coalesce") and "ticket" not in ours:
        args, kwargs = (body["args"], body["kwargs"]) if fields is body else (body or ((), {}))[:2]
        stands = word == "queue" and not fields.get("eta")  # what is not due yet does not keep the others waiting
        name = cleanup.lock_name(task, ours, args, kwargs) if stands else None
        number = _number_before(task, fields, args, kwargs)
        ours["ticket"] = number or (order.next_number(name, fields["id"]) if name else order.next_number())


def _number_before(task: Any, fields: Any, args: Any, kwargs: Any) -> int | None:
    """Return the sequence number of the page that replaces itself by this one, if both have one lock."""
    before = page_before(task.name, fields.get("id"))
    if before is None:
        return None
    names = [cleanup.lock_name(task, {}, *call) for call in ((args, kwargs), (before.args or (), before.kwargs or {}))]
    return header_of(before).get("ticket") if names[0] is not None and names[0] == names[1] else None


def _brought(task: str, headers: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    """Take our header out of those of a message that is being published: its own, or that of the try before it."""
    ours: Any = headers.pop(HEADER, None)
    if written_for(ours, task, fields.get("id")):
        return ours  # type: ignore[no-any-return]
    here: Any = get_current_worker_task()
    if here is None or (here.name, here.request.id) != (task, fields.get("id")):
        return {}
    nesting = getattr(here.request, "replaced_task_nesting", 0) or 0  # what it replaces itself with is another message
    return header_of(here.request) if (fields.get("replaced_task_nesting") or 0) == nesting else {}


def note_arrival(sender: Any = None, request: Any = None, **details: Any) -> None:
    """Note when a worker was given a message: what lies there for too long may be delivered to another one too."""
    if request is not None:
        request.request_dict[RECEIVED] = monotonic()


def takes_lock(task: Any) -> bool:
    """Return whether a task takes a lock, so that messages of it may be kept in the database."""
    return isinstance(task, OnceTask) or getattr(task.run, "lock", None) is not None


def begin_renewing(sender: Any = None, **details: Any) -> None:
    """Let a worker that is being made renew the leases of its messages."""
    from django_tasklock.celery.messages.lease import MessageLease  # it imports Celery's worker

    sender.app.steps["consumer"].add(MessageLease)


def begin_promoting(sender: Any = None, **details: Any) -> None:
    """Look after what is parked, in a worker that is ready."""
    app = sender.app if sender is not None else current_app
    if not any(map(takes_lock, app.tasks.values())):
        return  # nothing for it to look at, so it does not ask the database
    promoter = Promoter(app)
    _promoters.append(promoter)
    promoter.start()


def flush_heartbeat(**details: Any) -> None:
    """Give back what a child of a prefork worker still has when it ends, without Python's ``atexit``."""
    heartbeat.flush()


def end_promoting(**details: Any) -> None:
    """Stop looking after what is parked: the worker shuts down."""
    while _promoters:
        _promoters.pop().stop()
