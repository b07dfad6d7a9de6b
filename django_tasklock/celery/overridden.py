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

_MARKER = "tasklock_in_run"
_expected: ContextVar[list[type[Any]]] = ContextVar("tasklock_ahead")
"""The task class whose lock was taken and whose ``run`` comes next; ``run`` empties the list."""


@contextmanager
def expect_run(kind: type[Any]) -> Iterator[None]:
    """Mark the next ``run`` of this class as the body whose lock was taken."""
    previous = _expected.get([])
    try:
        # Inside the ``try``: a time limit that struck after it would leave the mark for another ``run``.
        _expected.set([kind])
        yield
    finally:
        _expected.set(previous)


def wrap_run(kind: type[Any], call: Callable[..., Any]) -> None:
    """Wrap the ``run`` of a task class with its own ``__call__``: it goes through ``call`` unless that was called."""
    own = inspect.getattr_static(kind, "run")
    static = isinstance(own, staticmethod)
    function = own.__func__ if static else own
    if kind.__call__ is call or vars(function).get(_MARKER) is kind:
        return
    if _MARKER in vars(function):  # already wrapped, for a base class
        function = function.__wrapped__

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        expected = _expected.get([])
        if expected and expected[0] is kind:
            expected.clear()
            return function(*args, **kwargs)
        if static:
            return call(kind._get_app().tasks[kind.name], *args, **kwargs)
        return call(*args, **kwargs)

    vars(run)[_MARKER] = kind
    kind.run = staticmethod(run) if static else run
