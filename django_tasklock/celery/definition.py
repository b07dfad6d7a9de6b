"""What a task's definition says: its body, whether that takes the task as ``self``, and its lock and limits.

All of it is read from the task's class. ``autoretry_for``, and Sentry at the first run, replace ``run`` on the instance
by a plain function, which does not tell whether it is bound, and which parameter is the task.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from django_tasklock.celery.options import pop_keywords
from django_tasklock.conf import milliseconds
from django_tasklock.decorators.concurrency import PermitOfCall
from django_tasklock.decorators.locks import Locked
from django_tasklock.decorators.rates import LimitOfCall, refuse_second_limit
from django_tasklock.decorators.rows import GuardedRow, GuardedRows
from django_tasklock.decorators.wrapping import is_async, layers_of
from django_tasklock.exceptions import TaskLockError
from django_tasklock.names import parameters_of

PATIENCE = 1800.0
"""The default number of seconds for which a message is put off whose body cannot begin."""


def body_of(task: Any) -> Callable[..., Any]:
    """Return the body of a task, or of a task's class, which takes the arguments of a message."""
    kind = task if isinstance(task, type) else task.__class__  # not type(): that of @shared_task's proxy is another
    run = _static_run(kind)
    return run.__get__(task, kind) if hasattr(run, "__get__") else run  # type: ignore[no-any-return]


def is_bound(task: Any) -> bool:
    """Return whether the body of a task, or of a task's class, takes the task as its first argument."""
    return inspect.ismethod(body_of(task))


def lock_of(task: Any) -> Locked | None:
    """Return the lock of a task's decorated function, or ``None``."""
    found = getattr(body_of(task), "lock", None)
    return found if isinstance(found, Locked) else None


def rate_limit_of(task: Any) -> LimitOfCall | None:
    """Return the rate limit of a task's decorated function, or ``None``."""
    found = getattr(body_of(task), "rate_limit", None)
    return found if isinstance(found, LimitOfCall) else None


def limiters_of(task: Any) -> Iterator[PermitOfCall]:
    """Return the concurrency limiters of a task's decorated function, the outermost first."""
    for function in layers_of(body_of(task)):
        if isinstance(limiter := getattr(function, "limiter", None), PermitOfCall):
            yield limiter


def row_of(task: Any, args: Any, kwargs: Mapping[str, Any]) -> GuardedRow | None:
    """Return the row that a call of the task's body works on, if it has a guard.

    Raises ``TypeError`` for arguments that do not fit, and ``TaskLockError`` for a key that is none.
    """
    locked = lock_of(task)
    rows = getattr(task, "guarded", None) if locked is None else locked.rows
    if not isinstance(rows, GuardedRows):
        return None
    kwargs = dict(kwargs or {})
    pop_keywords(kwargs)
    return rows.of(parameters_of(body_of(task)).bind(args or (), kwargs))


def bound_arguments(task: Any, args: Any) -> tuple[Any, ...]:
    """Return the arguments of a message as the task's decorated function gets them, with ``self`` if it is bound."""
    return (task, *(args or ())) if is_bound(task) else tuple(args or ())


def refuse_coroutine(kind: Any) -> None:
    """Raise ``TaskLockError`` for a task whose body is a coroutine function: Celery awaits no task."""
    if is_async(body_of(kind)):
        raise TaskLockError(
            f"task {kind.name}: its body is a coroutine function, which Celery calls and never awaits, so it would"
            " never run; make the task of a plain function that calls it: async_to_sync(work)(...), from asgiref.sync"
        )


def is_decorated(kind: Any) -> bool:
    """Return whether the body of a task, or of a task's class, is decorated by this package."""
    body = body_of(kind)
    return any(hasattr(body, name) for name in ("lock", "limiter", "rate_limit"))


def patience_of(task: Any) -> float:
    """Return the ``patience`` of a task, or of a task's class, in seconds: how long its messages are put off.

    An attribute of that name is another one's where the task is none of ours. Raises ``TaskLockError`` if it is no
    duration.
    """
    if not (hasattr(task, "once_options") or is_decorated(task)):
        return PATIENCE
    return milliseconds(getattr(task, "patience", PATIENCE), f"task {task.name}: patience") / 1000


def check_decorated(kind: Any) -> None:
    """Check a task whose body is decorated by this package, when Celery binds the task to its app.

    Raises ``TaskLockError`` for a coroutine function, two rate limits, ``{0}`` in a name where it is the task, and a
    ``patience`` that is no duration.
    """
    if not is_decorated(kind):
        return
    refuse_coroutine(kind)
    patience_of(kind)
    refuse_second_limit(f"task {kind.name}", [body_of(kind), kind.__call__])  # that of a task's class calls the body
    if is_bound(kind):
        _refuse_number_of_self(kind)


def _refuse_number_of_self(kind: Any) -> None:
    lock = lock_of(kind)
    templates = [] if lock is None else list(getattr(lock.template, "each", [lock.template]))
    for template in (*templates, *(limiter.template for limiter in limiters_of(kind))):
        first = next(iter(template.signature.parameters), "self")
        if template.numbered and first != "self":  # at decoration only the parameter's name tells
            raise TaskLockError(
                f"task {kind.name}: {{0}} in {template.template!r} is {first!r}, which is the task itself; call that"
                " parameter self, or write the argument's name in place of its number"
            )


def _static_run(kind: type[Any]) -> Any:
    for base in kind.__mro__:  # as inspect.getattr_static does, but much faster
        if "run" in vars(base):
            return vars(base)["run"]
    raise AttributeError(f"{kind!r} has no run()")
