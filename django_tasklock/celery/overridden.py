"""The lock of a task with a ``__call__`` of its own, as Celery's documentation writes one.

It calls ``run`` and knows of no lock, so ``run`` takes it there, if nobody has.
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
"""The class of the task whose lock was taken and whose ``run`` comes next, which empties it."""


@contextmanager
def locked(kind: type[Any]) -> Iterator[None]:
    """Let the next ``run`` of this class be the body: the lock is taken."""
    before = _ahead.get([])
    try:
        _ahead.set([kind])  # in here: a time limit that struck after it would let another ``run`` go without a lock
        yield
    finally:
        _ahead.set(before)


def lock_in_run(kind: type[Any], call: Callable[..., Any]) -> None:
    """Let the ``run`` of a task class whose ``__call__`` is not ``call`` go through that, where it was gone around."""
    own = inspect.getattr_static(kind, "run")
    static = isinstance(own, staticmethod)
    function = own.__func__ if static else own
    if kind.__call__ is call or vars(function).get(_MARK) is kind:
        return
    if _MARK in vars(function):  # of a class that this one is derived from
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
