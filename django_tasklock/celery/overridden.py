"""The lock of a task class with its own ``__call__``, as Celery's documentation shows.

Such a ``__call__`` calls ``run`` without a lock, so ``run`` is wrapped to take the lock unless it was taken already.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any

_MARK = "tasklock_in_run"
_ahead: ContextVar[list[type[Any]]] = ContextVar("tasklock_ahead")
"""The task class whose lock was taken and whose ``run`` comes next; ``run`` empties the list."""


@contextmanager
def locked(kind: type[Any]) -> Iterator[None]:
    """Mark the next ``run`` of this class as the body whose lock was taken."""
    before = _ahead.get([])
    try:
        # Inside the ``try``: a time limit that struck after it would leave the mark for another ``run``.
        _ahead.set([kind])
        yield
    finally:
        _ahead.set(before)


def lock_in_run(kind: type[Any], call: Callable[..., Any]) -> None:
    """Wrap the ``run`` of a task class with its own ``__call__``: it goes through ``call`` unless that was called."""
    own = inspect.getattr_static(kind, "run")
    static = isinstance(own, staticmethod)
    function = own.__func__ if static else own
    if kind.__call__ is call or vars(function).get(_MARK) is kind:
        return
    if _MARK in vars(function):  # already wrapped, for a base class
        function = function.__wrapped__

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        ahead = _ahead.get([])
        if ahead and ahead[0] is kind:
            ahead.clear()
            return function(*args, **kwargs)
        if static:
            return call(kind._get_app().tasks[kind.name], *args, **kwargs)
        return call(*args, **kwargs)

    vars(run)[_MARK] = kind
    kind.run = staticmethod(run) if static else run
