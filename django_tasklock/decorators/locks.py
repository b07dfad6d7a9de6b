"""``task_lock`` and ``model_lock``: run a function under a lock, the latter with a guarded row.

They decorate functions and coroutine functions, tasks or not. Put them *below* ``@shared_task``.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any, TypeVar

from django.db.models import Model

from django_tasklock import host
from django_tasklock.conf import DEFAULT, Duration, LeaseTime, OnConflict, OnUnavailable, Timeout, get_settings
from django_tasklock.decorators.call import Call
from django_tasklock.decorators.options import LockOptions
from django_tasklock.decorators.rows import GuardedRows
from django_tasklock.decorators.wrapping import check_decoratable, wrap
from django_tasklock.exceptions import TaskLockError
from django_tasklock.guards.guard import StateGuard
from django_tasklock.guards.keys import PK
from django_tasklock.locks.lock import TaskLock
from django_tasklock.names import NameTemplate, NameTemplates, as_names, of_tenant, with_tenant
from django_tasklock.types import LockInfo

F = TypeVar("F", bound=Callable[..., Any])

_undecided: weakref.WeakSet[Any] = weakref.WeakSet()


def register_undecided(locked: Any) -> None:
    """Register a function or task without a guarded row and without ``on_unavailable``, for a system check."""
    _undecided.add(locked)


def undecided() -> list[str]:
    """Return the names of the functions and tasks that ``register_undecided`` has registered."""
    return sorted({getattr(one, "name", None) or f"{one.__module__}.{one.__qualname__}" for one in list(_undecided)})


class NamedByCall:
    """What a decorated function holds while it runs, by the arguments of a call that need not be made."""

    def __init__(self, template: NameTemplate | NameTemplates, bound: bool = False) -> None:
        self.template = template
        self._bound = bound  # the first parameter is the task itself, which is no argument of a message

    def name(self, /, *args: Any, **arguments: Any) -> str:
        """Return its name for these arguments. Those that the name does not use may be left out."""
        if isinstance(self.template, NameTemplates):
            each = (NamedByCall(one, self._bound) for one in self.template.each)
            return self.template.joined(one.name(*args, **arguments) for one in each)
        if callable(self.template.template):
            first = (None,) if self._bound and args else ()
            return self.template.name((*first, *args), arguments)
        parameters = self.template.signature.parameters.values()
        if args:
            taken = inspect.Signature(list(parameters)[int(self._bound) :])
            arguments = taken.bind_partial(*args, **arguments).arguments
        defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
        return self.template.name_for(defaults | arguments)


class Locked(NamedByCall):
    """The lock of a decorated function, by the arguments of a call that need not be made: ``function.lock``."""

    def __init__(
        self,
        template: NameTemplate | NameTemplates,
        on_conflict: OnConflict | None = None,
        *,
        timeout: Timeout = DEFAULT,
        blocking_timeout: Duration | None = None,
        rows: GuardedRows | None = None,
    ) -> None:
        super().__init__(template)
        self.rows = rows
        self.on_conflict = on_conflict
        self.timeout = timeout
        self.blocking_timeout = blocking_timeout

    def of_bound(self) -> Locked:
        """Return this lock for a bound function."""
        bound = copy(self)
        bound._bound = True
        return bound

    def name(self, /, *args: Any, **arguments: Any) -> str:
        """Return the lock's name for these arguments. Those that the name does not use may be left out."""
        return with_tenant(super().name(*args, **arguments))

    def is_locked(self, /, *args: Any, **arguments: Any) -> bool:
        """Tell whether such a call runs now, for instance before publishing one. Raises ``BackendUnavailable``."""
        return TaskLock(self.name(*args, **arguments)).locked()

    def info(self, /, *args: Any, **arguments: Any) -> LockInfo | None:
        """Return the holder of the lock of such a call. Raises ``BackendUnavailable``."""
        return TaskLock(self.name(*args, **arguments)).info()


Name = str | Callable[..., str]
"""A template over the arguments of a function, or a callable that makes a name from them."""


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

    ``name``: a template over the arguments, ``"report:{day}"``, or a callable that takes them; or a list of these: all
    of them are locked, or none. ``timeout``: seconds; ``None``: until the body ends, however long that takes, while the
    lease frees the lock of a process that died.

    ``on_conflict`` decides what a call does when the lock is busy: ``"skip"`` returns ``{"status": "skipped", "reason":
    "already_processing", ...}``, ``"raise"`` raises ``TaskLockAcquireError``, and ``"wait"`` waits for
    ``blocking_timeout`` seconds (by default the timeout) before it raises. A Celery task can also use ``"retry"``,
    ``"reject"`` and, with one name, ``"queue"`` (at most ``queue_limit`` messages wait) and ``"coalesce"``, see
    ``django_tasklock.celery``; elsewhere these four raise.

    Database connections that the body opens are closed when it ends, subject to ``CONN_MAX_AGE`` as at the end of a
    request; those of a coroutine always. ``release_connections=True``, for a long body: all connections of its thread
    are closed before and after it, and guarded writes keep none open; it is the default if the ``timeout`` is over an
    hour. Then do not call it in a loop that reads from such a connection, as over ``iterator()``.

    Raises ``TaskLockError`` at decoration for options that cannot work, and at a call whose result is work that is not
    done, such as a pending future, because the lock would not cover it.
    """
    if callable(name):
        _refuse_bare(name)
    options = LockOptions(
        label=label_of(name),
        decorator="task_lock",
        timeout=timeout,
        lease=lease,
        on_conflict=on_conflict,
        blocking_timeout=blocking_timeout,
        reentrant=reentrant,
        on_unavailable=on_unavailable,
        queue_limit=queue_limit,
        release_connections=release_connections,
    )
    return _decorator(name, options)


def model_lock(
    model: type[Model] | str,
    name: Name | Sequence[Name] | None = None,
    *,
    guard: StateGuard,
    pk: str | None = None,
    lookup: str = PK,
    timeout: Timeout = DEFAULT,
    lease: LeaseTime = DEFAULT,
    on_conflict: OnConflict | None = None,
    blocking_timeout: Duration | None = None,
    on_unavailable: OnUnavailable | None = None,
    queue_limit: int | None = None,
    release_connections: bool | None = None,
) -> Callable[[F], F]:
    """Run the decorated function under a lock *and* a claim on the row that it processes.

    ``model`` is a model or a label such as ``"videos.Video"``; ``pk`` is the name of the argument with the row's key,
    by default the first one after ``self``. The key is the primary key, or the value of the unique field ``lookup``.
    Without a ``name`` the lock is called ``videos.video:`` and the key, so that all functions that process rows of one
    model in this way exclude each other.

    The row is claimed before the body and closed as ``done`` or ``failed`` after it, or made claimable again if Celery
    will retry. For a row that is not claimable the call returns ``{"status": "skipped", "reason":
    "invalid_state", "state": ..., ...}``, with the ``reason`` ``"missing"`` if there is no such row, or, with
    ``on_conflict="raise"`` or ``"wait"``, raises ``GuardRejected``. As the body of a Celery task, a call without a row
    is tried again for the guard's ``missing_timeout``; then the task fails with ``GuardRejected``. If another
    transaction has the row locked for more than two seconds, the message of a task is put off, and any other call is
    skipped with the reason ``"row_locked"``, or raises unless ``on_conflict="skip"``.
    In the body, ``current_claim()`` writes to the row.

    The claim excludes a second body also where the store is down and the policy ``"run"`` goes on without the lock.
    The other options are those of ``task_lock``.

    Raises ``TaskLockError`` like ``task_lock``, and at a call whose key its field cannot have, or would convert: the
    text ``"7"`` where keys are numbers.
    """
    label = model.lower() if isinstance(model, str) else model._meta.label_lower
    options = LockOptions(
        label=label if name is None else label_of(name),
        decorator="model_lock",
        timeout=timeout,
        lease=lease,
        on_conflict=on_conflict,
        blocking_timeout=blocking_timeout,
        on_unavailable=on_unavailable,
        queue_limit=queue_limit,
        release_connections=release_connections,
    )

    def rows_of(function: Callable[..., Any]) -> GuardedRows:
        where = repr(getattr(function, "__qualname__", repr(function)))
        return GuardedRows.of_function(where, inspect.signature(function), model, guard, pk, lookup)

    return _decorator(name, options, rows_of)


def label_of(name: Name | Sequence[Name]) -> str:
    """Return the template or the callable's name, for messages before there is a call."""
    return " + ".join(
        one if isinstance(one, str) else str(getattr(one, "__qualname__", repr(one))) for one in as_names(name)
    )


def _refuse_bare(name: Any) -> None:
    """Raise ``TaskLockError`` if ``name`` makes no names, but is what a bare ``@task_lock`` stands above.

    That is a task, or a function whose definition is not over yet: its decorators are called from its own lines.
    """
    bare = hasattr(name, "apply_async") or hasattr(name, "enqueue")
    code = getattr(inspect.unwrap(name), "__code__", None)
    if not bare and code is not None and code.co_name != "<lambda>":
        here: Any = inspect.currentframe()
        caller = here.f_back.f_back
        lines = range(code.co_firstlineno, 1 + max(line for *_, line in code.co_lines() if line))
        defined = {**caller.f_globals, **caller.f_locals}.get(code.co_name) is name  # in a shell all lines are 1
        bare = caller.f_code.co_filename == code.co_filename and caller.f_lineno in lines and not defined
    if bare:
        raise TaskLockError(
            f"{getattr(name, '__qualname__', name)}: @task_lock needs the name of the lock; write"
            " @task_lock('report:{day}'), with the arguments that count, below the task decorator if there is one"
        )


def _decorator(
    name: Name | Sequence[Name] | None,
    options: LockOptions,
    rows_of: Callable[[Callable[..., Any]], GuardedRows] | None = None,
) -> Callable[[F], F]:
    if name is not None and len(as_names(name)) > 1:
        options.check_several()

    def decorate(function: F) -> F:
        check_decoratable(function)
        rows = None if rows_of is None else rows_of(function)
        names = as_names(rows.name if name is None and rows is not None else name)
        prefix = get_settings().prefix
        template: NameTemplate | NameTemplates
        if len(names) > 1:
            template = NameTemplates(names, function, prefix=prefix)
        else:
            template = NameTemplate(names[0], function, prefix=prefix)
        locked = Locked(
            template,
            options.on_conflict,
            timeout=options.timeout,
            blocking_timeout=options.blocking_timeout,
            rows=rows,
        )
        if rows is not None:
            rows.guard.register(rows.model, locked, rows.pk, rows.lookup)

        def new_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
            row = None
            if rows is None:
                made = template.name(args, kwargs)
            else:
                made, arguments = template.name_and_arguments(args, kwargs)
                row = rows.of(arguments)
            with of_tenant(host.current.tenant_of(locked)):
                return options.call(made, row)

        wrapper = wrap(function, new_call, template.signature, locked)
        wrapper.lock = locked  # type: ignore[attr-defined]
        if rows is None and options.on_unavailable is None:
            register_undecided(wrapper)
        return wrapper

    return decorate
