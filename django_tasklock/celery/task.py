"""The task base ``OnceTask``: one message at a time per key. The task's own code knows nothing of it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from types import MethodType
from typing import TYPE_CHECKING, Any, ClassVar

from celery.canvas import Signature
from celery.contrib.django.task import DjangoTask
from celery.utils import uuid

from django_tasklock.celery import options
from django_tasklock.celery.fingerprint import fingerprint_name
from django_tasklock.celery.message import HEADER, Message, header_of, page_before, sealed_for, written_for
from django_tasklock.celery.misplaced import refuse_sent, refuse_written
from django_tasklock.celery.once import Once
from django_tasklock.celery.overridden import lock_in_run, locked
from django_tasklock.celery.parking import order
from django_tasklock.celery.rates.reservations import on_body_start
from django_tasklock.celery.retrying import autoretried, header_of_retry
from django_tasklock.celery.state import state_of
from django_tasklock.celery.unique import Pending, publish
from django_tasklock.conf import DEFAULT, Duration, LeaseTime, OnConflict, OnUnavailable, Timeout, get_settings
from django_tasklock.decorators.locks import Locked, leave_undecided
from django_tasklock.exceptions import TaskLockError
from django_tasklock.guards.guard import StateGuard
from django_tasklock.names import NameTemplate, clean

if TYPE_CHECKING:
    from django.db.models import Model

    from django_tasklock.celery.delivery.once import Way

    _DjangoTask = DjangoTask[Any, Any]
else:
    _DjangoTask = DjangoTask


class OnceTask(_DjangoTask):
    """A task that runs one message at a time per key: ``@shared_task(base=OnceTask, on_conflict="queue")``.

    Options are task options or class attributes.

    Durations are seconds or timedeltas. What a caller can say for one call is in ``once()``.
    Called directly, or eagerly, a task takes its lock as well; busy, it cannot be put aside,
    so ``retry``, ``queue`` and ``coalesce`` raise ``TaskLockAcquireError`` there.

    Raises ``TaskLockError`` for options that cannot work, when the task is bound to its app.
    """

    abstract = True

    key: ClassVar[str | Callable[..., str] | None] = None
    """A template over the arguments, ``"video:{video_id}"``, or a callable that takes them (without ``self``).
    What a template makes of them is hashed if no lock could have that name: too long, or a line break in it.
    ``None``: the task's name and a fingerprint of the arguments."""
    timeout: ClassVar[Timeout] = DEFAULT
    """The longest that one run may hold the lock; ``TASKLOCK["TIMEOUT"]``. ``None``: until it has ended."""
    lease: ClassVar[LeaseTime] = DEFAULT
    """The time for which the lock outlives a worker that died; ``TASKLOCK["LEASE"]``."""
    on_conflict: ClassVar[OnConflict] = "reject"
    """The word for a busy lock: ``skip``, ``raise``, ``wait``, ``retry``, ``reject``, ``queue`` or ``coalesce``."""
    blocking_timeout: ClassVar[Duration | None] = None
    """The longest that ``wait`` waits; by default the timeout."""
    on_unavailable: ClassVar[OnUnavailable | None] = None
    """The word for a store that is down: ``run``, ``raise`` or ``skip``."""
    queue_limit: ClassVar[int | None] = None
    """The most messages that ``queue`` parks for one key; one more fails."""
    unique: ClassVar[str | None] = None
    """``"until_start"`` or ``"until_finish"``: a second ``delay()`` meanwhile gives the result of the first."""
    on_duplicate: ClassVar[str] = "return"
    """The word for a second ``delay()``: ``"return"`` that result, or ``"raise"`` ``AlreadyPublished``."""
    unique_for: ClassVar[Duration | None] = None
    """The longest a message may wait in the broker before another one may be published; by default the timeout."""
    guard: ClassVar[StateGuard | None] = None
    """The guard that claims the row before the body; with ``model`` (or its label) and ``pk``, the argument with it."""
    model: ClassVar[type[Model] | str | None] = None
    pk: ClassVar[str] = "pk"
    retry_keeps_lock: ClassVar[bool] = False
    """Whether ``retry()`` keeps the lock until the task is back, or frees it."""
    release_connections: ClassVar[bool | None] = None
    """``True``, for a long body: it begins without database connections, and its guarded writes keep none. ``False``:
    even those that it opened are not closed at its end."""
    takeovers: ClassVar[int] = 3
    """The number of times that a message whose worker died is started again; then it fails with ``CrashLoop``."""

    @classmethod
    def on_bound(cls, app: Any) -> None:
        """Check the options, when Celery binds the task to its app."""
        super().on_bound(app)
        refuse_written(cls, OnceTask)
        if cls.run is DjangoTask.run or _is_celerys_own(cls):
            return
        where = f"task {cls.name}"
        options.check({name: options.written(cls, name) for name in (*options.OF_CALL, "release_connections")}, where)
        if type(cls.takeovers) is not int or cls.takeovers < 0:
            raise TaskLockError(f"{where}: takeovers must be a number, 0 or more, not {cls.takeovers!r}")
        key = options.written(cls, "key")
        if isinstance(key, str):
            bound = inspect.isfunction(inspect.getattr_static(cls, "run"))  # its ``self`` is no argument of a message
            NameTemplate(key, MethodType(cls.run, cls) if bound else cls.run, prefix=get_settings().KEY_PREFIX)
        if (cls.guard is None) != (cls.model is None):
            raise TaskLockError(f"{where}: guard and model go together, and pk names the argument with the row's key")
        if cls.guard is not None and cls.model is not None:
            if cls.pk not in inspect.signature(cls.run).parameters:
                raise TaskLockError(f"{where}: pk={cls.pk!r} is no argument of it")
            cls.guard.register(cls.model, cls, cls.pk)
        elif cls.on_unavailable is None:
            leave_undecided(cls)
        lock_in_run(cls, OnceTask.__call__)

    def once(self, **overrides: Any) -> Once:
        """Return the task with options for one call: ``task.once(key="video:42", on_conflict="wait").delay(...)``.

        ``key`` (literally), ``timeout``, ``lease``, ``on_conflict``, ``blocking_timeout``, ``on_unavailable``,
        ``queue_limit``, ``unique``, ``unique_for``, ``on_duplicate``, ``retry_keeps_lock``. Raises ``TaskLockError`` at
        once.
        """
        options.merge(self, overrides)
        return Once(self, overrides)

    @property
    def lock(self) -> Locked:
        """The lock, to ask before publishing: ``task.lock.is_locked(video_id=42)``, ``task.lock.info(...)``."""
        key = options.written(type(self), "key")
        template = key if isinstance(key, str) else self.lock_name
        return Locked(NameTemplate(template, self.run, prefix=get_settings().KEY_PREFIX, hashed=True), self.on_conflict)

    def lock_name(self, *args: Any, **kwargs: Any) -> str:
        """Return the lock's name for these arguments: of models, with ``pydantic=True``, for what a message has."""
        dump = getattr(self.run, "dump_arguments", None)  # Celery's, from 5.7 on
        if dump is not None:
            args, kwargs = dump(args, kwargs, bound=inspect.ismethod(self.run))
        prefix = get_settings().KEY_PREFIX
        key = options.written(type(self), "key")
        if key is None:
            return clean(fingerprint_name(self.name, self.run, args, kwargs), prefix)
        made = self.__dict__.get("_made")
        if made is None or made.template is not key:  # to read a template takes longer than to fill it
            made = self.__dict__["_made"] = NameTemplate(key, self.run, prefix=prefix, hashed=True)
        return clean(made.name(args, kwargs), prefix)

    def apply_async(self, args: Any = None, kwargs: Any = None, *more: Any, **sending: Any) -> Any:
        """Publish, with the lock's name in the header. Return the ``AsyncResult``.

        ``once``: a dict of options as in ``once()``.

        Raises ``TaskLockError`` for options that cannot work and ``BackendUnavailable`` as ``unique`` says.
        """
        base: Any = super()
        if _is_celerys_own(type(self)):
            return base.apply_async(args, kwargs, *more, **sending)
        refuse_sent(self.name, sending, "apply_async(...)")
        kwargs = dict(kwargs or {})
        overrides = options.pop_overrides(self, kwargs, sending.pop("once", None))
        headers = dict(sending.pop("headers", None) or {})
        task_id = (more[0] if more else sending.pop("task_id", None)) or uuid()
        more = more[1:]
        ours = headers.pop(HEADER, None)
        if written_for(ours, self.name, task_id):  # on its way again: a retry, or out of the line
            overrides.pop("key", None)
            headers[HEADER] = {**ours, "once": {**(ours.get("once") or {}), **options.plain(overrides)}}
            return base.apply_async(args, kwargs, task_id, *more, headers=headers, **sending)
        chosen = options.merge(self, overrides)
        name = overrides.pop("key", None)
        name = self.lock_name(*(args or ()), **kwargs) if name is None else clean(name, get_settings().KEY_PREFIX)
        header = sealed_for({"once": options.plain(overrides), "key": name}, self.name, task_id)
        headers[HEADER] = header
        lines_up = chosen.lock.on_conflict in ("queue", "coalesce")
        # Asked last: a look into Celery's settings takes as long as to make the lock's name.
        if (not lines_up and chosen.unique is None) or self.app.conf.task_always_eager:
            return base.apply_async(args, kwargs, task_id, *more, headers=headers, **sending)
        # What is not due yet does not keep the others waiting.
        stands = chosen.lock.on_conflict == "queue" and not (sending.get("countdown") or sending.get("eta"))

        def send() -> Any:
            if lines_up:  # its next page goes on in the place of the one before, as a retry does
                before = page_before(self.name, task_id, name)
                number = None if before is None else header_of(before).get("ticket")
                header["ticket"] = number or order.next_number(name, task_id if stands else "")
            try:
                return base.apply_async(args, kwargs, task_id, *more, headers=headers, **sending)
            except BaseException:
                if lines_up:
                    order.leave(name, task_id)
                raise

        if chosen.unique is None:
            return send()
        return publish(self, name, chosen, header, task_id, sending, send)

    def apply(self, args: Any = None, kwargs: Any = None, *more: Any, **sending: Any) -> Any:
        """Run here and now, with the same options as ``apply_async``."""
        refuse_sent(self.name, sending, "apply(...)")
        overrides = sending.pop("once", None)
        if overrides:
            options.merge(self, overrides)
            sending["task_id"] = sending.get("task_id") or uuid()
            header = sealed_for({"once": options.plain(overrides)}, self.name, sending["task_id"])
            sending["headers"] = {**(sending.get("headers") or {}), HEADER: header}
        return super().apply(args, kwargs, *more, **sending)

    def signature_from_request(
        self, request: Any = None, args: Any = None, kwargs: Any = None, queue: Any = None, **extra: Any
    ) -> Signature[Any]:
        """Return what ``retry()`` publishes: with the header of this message, and the handle of a lock that is kept."""
        refuse_sent(self.name, extra, "retry(...)")
        request = self.request if request is None else request
        ours: Any = (extra.get("headers") or {}).get(HEADER)
        ours = ours if written_for(ours, self.name, request.id) else header_of(request)
        ours = header_of_retry(self, request, ours, args, kwargs)
        state = state_of(request)
        if state.moved:
            state.kept_lock = None  # what is kept is the lock of the arguments before
        kept, handle = state.kept_lock or (None, "")
        if kept is not None and kept.held:
            ours = {**ours, "kept": handle}
        if ours:
            ours = sealed_for(ours, self.name, request.id)
            extra["headers"] = {**(extra.get("headers") or request.headers or {}), HEADER: ours}
        return super().signature_from_request(request, args, kwargs, queue, **extra)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if _is_celerys_own(type(self)):
            return self.run(*args, **kwargs)
        request = self.request
        if not request.id or request.called_directly or (state := state_of(request)).begun:
            return self._locked(args, kwargs, super().__call__, {}, "call")
        state.begun = True
        if request.is_eager:
            return self._locked(args, kwargs, self.run, header_of(request), "eager")
        message = Message(self, request)
        header = message.header
        if not header.get("unique"):
            return self._locked(args, kwargs, self.run, header, "message", message)
        pending = Pending(message, header["unique"])
        with pending, pending:
            return self._locked(args, kwargs, self.run, header, "message", message, pending)

    def _locked(
        self,
        args: Any,
        kwargs: dict[str, Any],
        body: Callable[..., Any],
        header: Any,
        way: Way,
        message: Message | None = None,
        pending: Pending | None = None,
    ) -> Any:
        """Run ``body``, or what there is to do instead.

        ``message``: what a worker was sent; ``pending``: how it was published, if that was to be once.
        """
        from django_tasklock.celery.delivery.once import once_call  # it touches models, which early imports must not

        overrides = options.pop_overrides(self, kwargs, header.get("once"))
        chosen = options.merge(self, overrides)
        key = overrides.pop("key", None)
        name = header.get("key") or key or self.lock_name(*args, **kwargs)
        if message is not None and "key" not in header:  # it was sent by its name; what is sent again of it has all
            message.header = self._named(header, name, overrides, chosen)
        call = once_call(self, name, chosen, args, kwargs, way, message)
        try:
            with ExitStack() as stack:
                try:
                    entered = call.enter(stack)
                except Exception as error:
                    if way == "call":
                        raise
                    autoretried(self, error)
                if entered:
                    if pending is not None:
                        on_body_start(self, partial(pending.started, chosen))
                    if type(self).__call__ is OnceTask.__call__:
                        return body(*args, **kwargs)
                    with locked(type(self)):
                        return body(*args, **kwargs)
        except BaseException:
            call.struck()
            raise
        return call.skipped

    def _named(
        self, header: Mapping[str, Any], name: str, overrides: Mapping[str, Any], chosen: options.OnceOptions
    ) -> dict[str, Any]:
        """Write the header that its publisher, who did not know the task, could not write."""
        ours = {**header, "key": clean(name, get_settings().KEY_PREFIX), "once": options.plain(overrides)}
        if chosen.lock.on_conflict in ("queue", "coalesce"):
            ours.setdefault("ticket", order.next_number())
        self.request.__dict__[HEADER] = ours
        return ours


def _is_celerys_own(kind: type[Any]) -> bool:
    """Return whether it is one of Celery's own tasks, which get the ``task_cls`` of an app as well."""
    return kind.__module__ == "celery.app.builtins"
