"""``task_lock`` and ``model_lock``: run a function under a lock, and a lock with a guarded row.

For functions and coroutine functions, tasks or not; put them *below* ``@shared_task``.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from django.apps import apps
from django.db.models import Model

from django_tasklock import host
from django_tasklock.conf import (
    DEFAULT,
    Duration,
    LeaseTime,
    OnConflict,
    OnUnavailable,
    Timeout,
    get_settings,
)
from django_tasklock.decorators.call import Call, PlainCall
from django_tasklock.decorators.options import GuardedRow, LockOptions
from django_tasklock.decorators.wrapping import check_decoratable, wrap
from django_tasklock.exceptions import TaskLockError
from django_tasklock.guards.guard import StateGuard
from django_tasklock.locks.lock import TaskLock
from django_tasklock.names import NameTemplate, NameTemplates, as_names
from django_tasklock.types import LockInfo

F = TypeVar("F", bound=Callable[..., Any])

_undecided: weakref.WeakSet[Any] = weakref.WeakSet()


def leave_undecided(locked: Any) -> None:
    """Let a system check know of a function or task that no row guards, and that does not say what it does
    while the store is down."""
    _undecided.add(locked)


def undecided() -> list[str]:
    """Return the names of those there are."""
    return sorted({getattr(one, "name", None) or f"{one.__module__}.{one.__qualname__}" for one in list(_undecided)})


class Locked:
    """What ``function.lock`` answers: the lock of one call, before that call is made."""

    def __init__(
        self,
        template: NameTemplate | NameTemplates,
        on_conflict: OnConflict | None = None,
        *,
        timeout: Timeout = DEFAULT,
        bound: bool = False,
    ) -> None:
        self.template = template
        self.on_conflict = on_conflict
        self.timeout = timeout
        self._bound = bound  # its first parameter is the task itself, which is no argument of a message

    def of_bound(self) -> Locked:
        """Return this lock for a function that is called as a method."""
        return Locked(self.template, self.on_conflict, timeout=self.timeout, bound=True)

    def name(self, /, *args: Any, **arguments: Any) -> str:
        """Return the lock's name for these arguments; those that the name uses and that have no default are enough."""
        if isinstance(self.template, NameTemplates):
            each = (Locked(one, bound=self._bound) for one in self.template.each)
            return self.template.joined(one.name(*args, **arguments) for one in each)
        if callable(self.template.template):
            first = (None,) if self._bound and args else ()
            return self.template.name((*first, *args), arguments)
        if args:
            taken = list(self.template.signature.parameters.values())[int(self._bound) :]
            arguments = inspect.Signature(taken).bind_partial(*args, **arguments).arguments
        parameters = self.template.signature.parameters.values()
        defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
        return self.template.name_for(defaults | arguments)

    def is_locked(self, /, *args: Any, **arguments: Any) -> bool:
        """Return whether such a call runs now: ask before publishing one. Raises ``BackendUnavailable``."""
        return TaskLock(self.name(*args, **arguments)).locked()

    def info(self, /, *args: Any, **arguments: Any) -> LockInfo | None:
        """Return who runs such a call now. Raises ``BackendUnavailable``."""
        return TaskLock(self.name(*args, **arguments)).info()


Name = str | Callable[..., str]
"""A template over the arguments of a function, or what makes a name of them."""


def task_lock(
    name: Name | Sequence[Name],
    *,
    timeout: Timeout = DEFAULT,
    lease: LeaseTime = DEFAULT,
    on_conflict: OnConflict | None = None,
    blocking_timeout: Duration | None = None,
    reentrant: bool = False,
    on_unavailable: OnUnavailable | None = None,
    queue_limit: int | None = None,
    release_connections: bool | None = None,
) -> Callable[[F], F]:
    """Run the decorated function once at a time per name.

    ``name``: a template over its arguments, ``"report:{day}"``, or a callable that takes
    them; or a list of these: all are locked, or none. Busy, by ``on_conflict``: ``"skip"`` returns
    ``{"status": "skipped", "reason": "already_processing", ...}``, ``"raise"`` raises
    ``TaskLockAcquireError``, ``"wait"`` waits ``blocking_timeout`` seconds (by default the timeout),
    then raises. ``timeout=None``: until the body ends, however long that takes; the lease frees the
    lock of a process that died. In a Celery task also ``"retry"``, ``"reject"``, and with one name
    ``"queue"`` (at most ``queue_limit`` wait) and ``"coalesce"``, see ``django_tasklock.celery``;
    elsewhere these four raise.

    Database connections that are opened in the body are closed when it ends, by ``CONN_MAX_AGE`` as at the end of a
    request; a coroutine's always. A body whose ``timeout`` is over an hour does not hold what taking its lock has
    opened. ``release_connections=True``, for a long body: all of its thread's are closed before and after it, and
    guarded writes keep none. ``False``: none are.

    Raises ``TaskLockError`` at decoration for what cannot work, and for a result that is work yet to be done, a future
    say: no lock excludes that.
    """
    options = LockOptions(
        label=_label(name),
        decorator="task_lock",
        timeout=timeout,
        lease=lease,
        on_conflict=on_conflict,
        blocking_timeout=blocking_timeout,
        on_unavailable=on_unavailable,
        queue_limit=queue_limit,
        release_connections=release_connections,
        reentrant=reentrant,
    )
    return _decorator(name, options)


def model_lock(
    model: type[Model] | str,
    name: Name | Sequence[Name],
    *,
    guard: StateGuard,
    pk: str = "pk",
    timeout: Timeout = DEFAULT,
    lease: LeaseTime = DEFAULT,
    on_conflict: OnConflict | None = None,
    blocking_timeout: Duration | None = None,
    on_unavailable: OnUnavailable | None = None,
    queue_limit: int | None = None,
    release_connections: bool | None = None,
) -> Callable[[F], F]:
    """Run the decorated function under a lock *and* a claim on the row it works on.

    ``pk`` names the argument with the row's primary key; ``model`` may be a label such as
    ``"videos.Video"``. The row is claimed before the body, closed as ``done`` or ``failed``
    after it, or given back if Celery will retry. A row that is not claimable gives
    ``{"status": "skipped", "reason": "invalid_state", ...}`` or, with ``on_conflict="raise"``
    or ``"wait"``, raises ``GuardRejected``. Inside, ``current_claim()`` writes to the row.

    Without the lock, when the store is down and the policy is ``"run"``, the claim still judges.
    With a ``timeout`` over an hour this thread's database connection is closed before the body (unless
    ``release_connections=False``; otherwise as for ``task_lock``), so whoever calls it in a loop must not be reading
    from that connection, as ``iterator()`` does.
    """
    options = LockOptions(
        label=_label(name),
        decorator="model_lock",
        timeout=timeout,
        lease=lease,
        on_conflict=on_conflict,
        blocking_timeout=blocking_timeout,
        on_unavailable=on_unavailable,
        queue_limit=queue_limit,
        release_connections=release_connections,
    )
    return _decorator(name, options, _Rows(model, pk, guard))


class _Rows(NamedTuple):
    """The rows that a function works on: that of a call is named by its argument ``pk``."""

    model: type[Model] | str
    pk: str
    guard: StateGuard

    def check(self, function: Any, template: NameTemplate | NameTemplates) -> None:
        """Raise ``TaskLockError`` if the function has no such argument."""
        if self.pk not in template.signature.parameters:
            known = ", ".join(template.signature.parameters)
            where = getattr(function, "__qualname__", repr(function))
            raise TaskLockError(f"pk={self.pk!r} is no argument of {where!r}; known: {known or 'none'}")

    def of(self, arguments: Mapping[str, Any]) -> GuardedRow:
        """Return the row of the call with these arguments."""
        model = apps.get_model(self.model) if isinstance(self.model, str) else self.model
        return GuardedRow(model, arguments[self.pk], self.guard)


def _label(name: Name | Sequence[Name]) -> str:
    """Return what people are told in place of a name that only a call has."""
    return " + ".join(
        one if isinstance(one, str) else str(getattr(one, "__qualname__", repr(one))) for one in as_names(name)
    )


def _decorator(name: Name | Sequence[Name], options: LockOptions, rows: _Rows | None = None) -> Callable[[F], F]:
    names = as_names(name)
    if len(names) > 1:
        options.check_several()

    def decorate(function: F) -> F:
        check_decoratable(function)
        prefix = get_settings().KEY_PREFIX
        template: NameTemplate | NameTemplates
        if len(names) > 1:
            template = NameTemplates(names, function, prefix=prefix)
        else:
            template = NameTemplate(names[0], function, prefix=prefix)
        locked = Locked(template, options.on_conflict, timeout=options.timeout)
        if rows is not None:
            rows.check(function, template)
            rows.guard.register(rows.model, locked, rows.pk)

        def new_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
            if rows is None:
                called = options.call(template.name(args, kwargs))
            else:
                made, arguments = template.name_and_arguments(args, kwargs)
                called = options.call(made, rows.of(arguments))
            return Call(called, host.current.strategy_for(locked, PlainCall)(called))

        wrapper = wrap(function, new_call, template.signature)
        wrapper.lock = locked  # type: ignore[attr-defined]
        if rows is None and options.on_unavailable is None:
            leave_undecided(wrapper)
        return wrapper

    return decorate
