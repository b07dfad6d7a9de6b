"""The task base ``OnceTask``: one message at a time per key, without code in the task itself."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from celery.app.autoretry import add_autoretry_behaviour
from celery.canvas import Signature
from celery.contrib.django.task import DjangoTask
from celery.utils import uuid

from django_tasklock.celery import options
from django_tasklock.celery.definition import PATIENCE, body_of, patience_of, refuse_coroutine
from django_tasklock.celery.fingerprint import fingerprint_name
from django_tasklock.celery.message import (
    HEADER,
    LINE,
    Message,
    bind_header,
    header_of,
    headers_to_resend,
    is_header_for,
    tenant_header,
)
from django_tasklock.celery.options import Once, OnceOptions
from django_tasklock.celery.queue import line
from django_tasklock.celery.rates import on_body_start
from django_tasklock.celery.state import state_of
from django_tasklock.celery.unique import UniqueLock, publish_unique
from django_tasklock.conf import DEFAULT, Duration, LeaseTime, OnConflict, OnUnavailable, Timeout, get_settings
from django_tasklock.decorators.locks import Locked, register_undecided
from django_tasklock.decorators.rows import GuardedRows
from django_tasklock.decorators.wrapping import check_is_over
from django_tasklock.exceptions import TaskLockError
from django_tasklock.guards.guard import StateGuard
from django_tasklock.guards.keys import PK
from django_tasklock.names import NameTemplate, of_tenant, own_name

_RETRY_OPTIONS = (
    "autoretry_for", "dont_autoretry_for", "retry_kwargs", "retry_backoff", "retry_backoff_max", "retry_jitter",
    "max_retries", "override_max_retries",
)  # fmt: skip

if TYPE_CHECKING:
    from django.db.models import Model

    from django_tasklock.celery.delivery.callers import Invocation

    _DjangoTask = DjangoTask[Any, Any]
else:
    _DjangoTask = DjangoTask


class OnceTask(_DjangoTask):
    """A task that runs one message at a time per key: ``@shared_task(base=OnceTask, on_conflict="queue")``.

    Options are task options or class attributes. Durations are seconds or timedeltas. ``once()`` overrides options for
    one call.

    A subclass may have ``get_lock(self, args, kwargs)`` or ``get_key(self, args, kwargs)`` in place of ``key``. It
    returns the name of the lock, or a lock of redis-py, of which the name, ``timeout`` and ``blocking_timeout`` count.

    A task that is called directly or eagerly takes its lock as well. There is no message to put aside then, so with a
    busy lock ``retry``, ``queue`` and ``coalesce`` raise ``TaskLockAcquireError``.

    Raises ``TaskLockError`` for invalid options, when the task is bound to its app.
    """

    abstract = True

    key: ClassVar[str | Callable[..., str] | None] = None
    """A template over the arguments, ``"video:{video_id}"``, or a callable that takes them (without ``self``). The text
    of a template is hashed if it is no valid lock name: too long, or with a line break. ``None``: with a ``guard``
    ``videos.video:`` and the row's key, otherwise the task's name and a fingerprint of the arguments."""
    timeout: ClassVar[Timeout] = DEFAULT
    """The longest that one run may hold the lock; by default ``TASKLOCK["TIMEOUT"]``. ``None``: until the run has
    ended."""
    lease: ClassVar[LeaseTime] = DEFAULT
    """How long the lock outlives a worker that died; by default ``TASKLOCK["LEASE"]``."""
    on_conflict: ClassVar[OnConflict] = "reject"
    """What to do if the lock is busy: ``skip``, ``raise``, ``wait``, ``retry``, ``reject``, ``queue`` or
    ``coalesce``."""
    blocking_timeout: ClassVar[Duration | None] = None
    """The longest that ``wait`` waits; by default the timeout."""
    on_unavailable: ClassVar[OnUnavailable | None] = None
    """What to do if the store is down: ``run``, ``raise`` or ``skip``."""
    queue_limit: ClassVar[int | None] = None
    """The most messages that ``queue`` parks for one key; one more fails."""
    unique: ClassVar[str | None] = None
    """``"until_start"`` or ``"until_finish"``: until then a second ``delay()`` returns the result of the first."""
    on_duplicate: ClassVar[str] = "return"
    """What a second ``delay()`` does: ``"return"`` that result, or ``"raise"`` ``AlreadyPublished``."""
    unique_for: ClassVar[Duration | None] = None
    """The longest a message may wait in the broker before another one may be published; by default the timeout."""
    guard: ClassVar[StateGuard | None] = None
    """The guard that claims the row before the body runs; needs ``model``, a class or its label."""
    model: ClassVar[type[Model] | str | None] = None
    pk: ClassVar[str | None] = None
    """The argument with the row's key, by default the first one after ``self``."""
    lookup: ClassVar[str] = PK
    """The unique field of the row that the key is of, by default the primary key."""
    guarded: ClassVar[GuardedRows | None] = None
    """The rows of a guarded task, set when it is bound."""
    names_lock: ClassVar[str] = ""
    """The method of a project's own class that names the lock, ``get_lock`` or ``get_key``; set when it is bound."""
    once_options: ClassVar[OnceOptions]
    """The options of its calls, set when it is bound."""
    lock_template: ClassVar[NameTemplate]
    """The name of its lock, set when it is bound."""
    release_connections: ClassVar[bool | None] = None
    """Whether the body starts without database connections, and its guarded writes keep none open; by default if it may
    run for longer than an hour."""
    takeovers: ClassVar[int] = 3
    """How often a message whose worker died is started again; after that it fails with ``CrashLoop``."""
    patience: ClassVar[Duration] = PATIENCE
    """For how long a message is put off whose body cannot begin, because the store refuses, the database is down or the
    row is locked; after that it fails. The write that closes its row is tried for as long."""

    acks_late = True
    """Whether a message is acknowledged when its run has ended, so that it comes back if its worker dies. ``None``:
    Celery's setting ``task_acks_late``."""
    reject_on_worker_lost = True
    """Whether it also comes back if only its process dies. ``None``: Celery's ``task_reject_on_worker_lost``."""

    @classmethod
    def on_bound(cls, app: Any) -> None:
        """Validate the options, when Celery binds the task to its app."""
        super().on_bound(app)
        if cls.__module__ == "celery.app.builtins":  # Celery's own tasks get the ``task_cls`` of an app as well
            for method in ("__call__", "apply_async", "apply", "signature_from_request"):
                setattr(cls, method, getattr(DjangoTask, method))
            for option in ("acks_late", "reject_on_worker_lost"):
                if option not in vars(cls):
                    setattr(cls, option, app.conf[f"task_{option}"])
            return
        if cls.run is DjangoTask.run:
            return
        where, body = f"task {cls.name}", body_of(cls)
        refuse_coroutine(cls)
        if inspect.unwrap(cls.__call__) is not OnceTask.__call__:
            raise TaskLockError(
                f"{where}: its class has a __call__ of its own, which would call run() without the lock: move what it"
                " does into before_start() and after_return(), or into a decorator of the body"
            )
        cls.once_options = options.of_task(cls)
        if type(cls.takeovers) is not int or cls.takeovers < 0:
            raise TaskLockError(f"{where}: takeovers must be a number, 0 or more, not {cls.takeovers!r}")
        patience_of(cls)
        if (cls.guard is None) != (cls.model is None):
            raise TaskLockError(f"{where}: guard and model go together")
        key, cls.guarded = inspect.getattr_static(cls, "key"), None
        if cls.guard is not None and cls.model is not None:
            cls.guarded = GuardedRows.of_function(
                where, inspect.signature(body), cls.model, cls.guard, cls.pk, cls.lookup
            )
            cls.guard.register(cls.model, cls, cls.guarded.pk, cls.lookup)
            key = cls.guarded.name if key is None else key
        elif cls.on_unavailable is None:
            register_undecided(cls)
        cls.names_lock = options.method_of(cls)
        if cls.names_lock:
            key = getattr(cls, cls.names_lock)
        if key is None:
            key = lambda *args, **kwargs: fingerprint_name(cls.name, body, args, kwargs)  # noqa: E731
        key = key.__func__ if isinstance(key, staticmethod) else key
        cls.lock_template = NameTemplate(key, body, prefix=get_settings().prefix, hashed=True)

    def once(self, **overrides: Any) -> Once:
        """Return the task with options for one call: ``task.once(key="video:42", on_conflict="wait").delay(...)``.

        ``key`` (literally), ``timeout``, ``lease``, ``on_conflict``, ``blocking_timeout``, ``on_unavailable``,
        ``queue_limit``, ``unique``, ``unique_for``, ``on_duplicate``. Raises ``TaskLockError`` at once if one of them
        is invalid.
        """
        options.of_call(self, overrides)
        return Once(self, overrides)

    @property
    def lock(self) -> Locked:
        """The lock, to query before publishing: ``task.lock.is_locked(video_id=42)``, ``task.lock.info(...)``."""
        template = self.lock_template
        if callable(template.template):
            template = NameTemplate(self.lock_name, body_of(self))
        return Locked(template, self.on_conflict)

    def lock_name(self, *args: Any, **kwargs: Any) -> str:
        """Return the lock's name for these arguments: of models, with ``pydantic=True``, for what a message has."""
        if self.names_lock:
            return own_name(self._said_by_method(args, kwargs)["key"])
        return own_name(self.lock_template.name(*self._as_sent(args, kwargs)))

    def _as_sent(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Return arguments as a message has them."""
        body = body_of(self)
        dump = getattr(body, "dump_arguments", None)  # Celery's, from 5.7 on
        return (args, kwargs) if dump is None else dump(args, kwargs, bound=inspect.ismethod(body))

    def _said_by_method(self, args: Any, kwargs: Any) -> dict[str, Any]:
        """Return the options of a call that ``get_lock`` or ``get_key`` of the project's class says, if it has one."""
        if not self.names_lock:
            return {}
        args, kwargs = self._as_sent(tuple(args or ()), dict(kwargs))
        return options.of_lock(self, getattr(self, self.names_lock)(args, kwargs))

    def apply_async(self, args: Any = None, kwargs: Any = None, *more: Any, **sending: Any) -> Any:
        """Publish the task, with the lock's name in the header. Return the ``AsyncResult``.

        ``once``: a dict of options as in ``once()``.

        Raises ``TaskLockError`` for invalid options, and what ``unique`` raises: ``AlreadyPublished``,
        ``BackendUnavailable``.
        """
        base: Any = super()
        options.refuse_among_publishing_options(self.name, sending, "apply_async(...)")
        kwargs = dict(kwargs or {})
        overrides = options.pop_overrides(self, kwargs, sending.pop("once", None))
        headers = dict(sending.pop("headers", None) or {})
        task_id = (more[0] if more else sending.pop("task_id", None)) or uuid()
        header = headers.pop(HEADER, None)

        def send() -> Any:
            return base.apply_async(args, kwargs, task_id, *more[1:], headers={**headers, HEADER: header}, **sending)

        if is_header_for(header, self.name, task_id):  # sent again: a retry, or a promoted message
            overrides.pop("key", None)
            header = {**header, "once": {**(header.get("once") or {}), **options.serializable(overrides)}}
            return send()
        overrides = options.joined(self, self._said_by_method(args, kwargs), overrides)
        chosen = options.of_call(self, overrides)
        name = overrides.pop("key", None)
        name = self.lock_name(*(args or ()), **kwargs) if name is None else own_name(name)
        known = {"once": options.serializable(overrides), "key": name, **tenant_header()}
        header = bind_header(known, self.name, task_id)
        if chosen.lock.on_conflict in ("queue", "coalesce"):
            header[LINE] = chosen.lock.on_conflict
        if self.app.conf.task_always_eager:
            return send()
        try:
            return publish_unique(self, name, chosen, header, task_id, sending, send) if chosen.unique else send()
        except BaseException:
            if chosen.lock.on_conflict == "queue":
                line.leave(name, task_id)
            raise

    def apply(self, args: Any = None, kwargs: Any = None, *more: Any, **sending: Any) -> Any:
        """Run the task here and now, with the same options as ``apply_async``."""
        options.refuse_among_publishing_options(self.name, sending, "apply(...)")
        if overrides := sending.pop("once", None):
            options.of_call(self, overrides)
            sending["task_id"] = sending.get("task_id") or uuid()
            header = bind_header({"once": options.serializable(overrides)}, self.name, sending["task_id"])
            sending["headers"] = {**(sending.get("headers") or {}), HEADER: header}
        return super().apply(args, kwargs, *more, **sending)

    def signature_from_request(
        self, request: Any = None, args: Any = None, kwargs: Any = None, queue: Any = None, **extra: Any
    ) -> Signature[Any]:
        """Return the signature that ``retry()`` publishes, with this message's header."""
        options.refuse_among_publishing_options(self.name, extra, "retry(...)")
        request = self.request if request is None else request
        our_header: Any = (extra.get("headers") or {}).get(HEADER)
        our_header = our_header if is_header_for(our_header, self.name, request.id) else header_of(request)
        our_header = retry_header(self, request, our_header, args, kwargs)
        if our_header:
            our_header = bind_header(our_header, self.name, request.id)
            extra["headers"] = {**(extra.get("headers") or headers_to_resend(request)), HEADER: our_header}
        return super().signature_from_request(request, args, kwargs, queue, **extra)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        request = self.request
        if not request.id or request.called_directly or (state := state_of(request)).begun:
            return self._locked(args, kwargs, super().__call__, {}, "call")
        state.begun = True
        if request.is_eager:
            return self._locked(args, kwargs, self.run, header_of(request), "eager")
        message = Message(self, request)
        with UniqueLock(message) as unique:
            return self._locked(args, kwargs, self.run, message.header, "message", message, unique)

    def _locked(
        self,
        args: Any,
        kwargs: dict[str, Any],
        body: Callable[..., Any],
        header: Any,
        invocation: Invocation,
        message: Message | None = None,
        unique: UniqueLock | None = None,
    ) -> Any:
        """Run ``body`` under the lock, or do what the options say instead.

        ``message``: the message that a worker received, with its ``unique`` lock.
        """
        from django_tasklock.celery.delivery.callers import (
            once_call,  # imports models, which must not be imported early
        )

        overrides = options.pop_overrides(self, kwargs, header.get("once"))
        if "key" not in header:
            overrides = options.joined(self, self._said_by_method(args, kwargs), overrides)
        chosen = options.of_call(self, overrides)
        key = overrides.pop("key", None)
        name = header.get("key") or key or self.lock_name(*args, **kwargs)
        if message is not None and "key" not in header:  # ``send_task`` published it, which does not know the task
            known = {**header, "key": own_name(name), "once": options.serializable(overrides)}
            message.header = bind_header(known, self.name, message.id)
            message.request.__dict__[HEADER] = message.header
        with of_tenant("" if "key" in header else None):
            caller = once_call(self, name, chosen, args, kwargs, invocation, message)

        def run() -> Any:
            if unique is not None:
                on_body_start(self, lambda: unique.started(chosen))
            result = body(*args, **kwargs)
            check_is_over(body_of(self), result)
            return result

        try:
            return caller.run(run)
        except Exception as error:
            if caller.call.begun or invocation == "call":
                raise
            raise_or_retry(self, error)


def retry_header(task: Any, request: Any, header: Mapping[str, Any], args: Any, kwargs: Any) -> dict[str, Any]:
    """Return the header of a retry of a ``OnceTask`` with these arguments; ``None``: those of this try.

    If the arguments change the lock, the header loses the sequence number and the ``unique`` lock of this try. A key
    that the caller chose stays.
    """
    if args is None and kwargs is None:
        return dict(header)
    before = request.args or (), request.kwargs or {}
    after = before[0] if args is None else args, before[1] if kwargs is None else kwargs
    with of_tenant(header.get("tenant")):
        if "key" not in header or _name(task, *before) != header["key"]:
            return dict(header)
        name = _name(task, *after)
    if name is None or name == header["key"]:
        return dict(header)
    state_of(request).lock_changed = True
    return {"key": name, "once": header.get("once") or {}, **{key: header[key] for key in ("tenant",) if key in header}}


def _name(task: Any, args: Any, kwargs: Mapping[str, Any]) -> str | None:
    """Return the lock of a call with these arguments; ``None`` if it has no name, or the caller chose the key."""
    rest = dict(kwargs)
    if "key" in options.pop_keywords(rest):
        return None
    try:
        return str(task.lock_name(*args, **rest))
    except (TypeError, TaskLockError):  # Celery reports arguments that do not fit
        return None


def raise_or_retry(task: Any, error: Exception) -> NoReturn:
    """Raise ``error``, or the ``Retry`` that ``autoretry_for`` makes of it, as if the task's body had raised it."""

    def run() -> NoReturn:
        raise error

    own = {option: getattr(task, option) for option in _RETRY_OPTIONS if hasattr(task, option)}
    stand_in = SimpleNamespace(run=run, request=task.request, retry=task.retry, **own)
    add_autoretry_behaviour(stand_in)
    stand_in.run()
    raise error
