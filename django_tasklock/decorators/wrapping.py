"""What can be decorated, with which options, and the function in place of it: for locks and limits alike."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AsyncExitStack, ExitStack
from types import AsyncGeneratorType, GeneratorType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from django_tasklock.exceptions import TaskLockError

if TYPE_CHECKING:
    from django_tasklock.decorators.call import Call

F = TypeVar("F", bound=Callable[..., Any])

FUTURES = (asyncio.Future, Future)  # a task is one of the first kind


def call_of(function: Any) -> Any:
    """Return the ``__call__`` of an object that is called like a function."""
    return type(function).__call__


def is_async(function: Any) -> bool:
    """Return whether calling it makes a coroutine."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call_of(function))


def check_decoratable(function: Any) -> None:
    """Raise ``TaskLockError`` for what a lock cannot be put around."""
    name = _called(function)
    if hasattr(function, "apply_async") or hasattr(function, "enqueue"):
        raise TaskLockError(f"{name} already is a task: put the lock decorator below the task decorator")
    generates = any(
        inspect.isgeneratorfunction(f) or inspect.isasyncgenfunction(f) for f in (function, call_of(function))
    )
    if generates or getattr(function, "__globals__", None) is vars(contextlib):  # contextmanager's own wrapper
        what = "a generator" if generates else "a context manager"
        raise TaskLockError(f"{name} is {what}: it would run after its lock was released; lock inside of it instead")
    if isinstance(function, staticmethod | classmethod):
        raise TaskLockError(f"{name}: put @{type(function).__name__} above the lock decorator, not below it")
    if not callable(function):
        raise TaskLockError(
            f"{function!r} cannot be decorated: it is not callable (was it called as @task_lock, without a name?)"
        )


def check_is_over(function: Any, result: Any) -> None:
    """Raise ``TaskLockError`` if ``result`` of ``function`` is its body, which has not begun or is not over.

    What ``check_has_begun`` refuses, and a future that is not done: an ``asyncio`` task, or what a pool of threads or
    processes was given. It is cancelled, whoever else waits for it, unless a pool is at it: its body would be run, or
    go on, and no lock excludes it any more.
    """
    check_has_begun(function, result)
    if not isinstance(result, FUTURES) or result.done():
        return
    kind = type(result).__name__
    if isinstance(result, asyncio.Future):
        result.cancel()
        raise TaskLockError(
            f"{_called(function)} returned a {kind} of asyncio that is not done, which is cancelled: its body would run"
            " after its lock; put the decorator above an 'async def' that awaits it"
        )
    fate = "which is cancelled: its body would run" if result.cancel() else "and goes on: its body runs"
    raise TaskLockError(
        f"{_called(function)} returned a {kind} of a pool that is not done, {fate} after its lock; return its result(),"
        " or put the decorator above what the pool runs"
    )


def check_has_begun(function: Any, result: Any) -> None:
    """Raise ``TaskLockError`` if ``result`` of ``function`` is its body, which has not begun: a coroutine, a generator.

    ``is_async`` and ``check_decoratable`` do not see that where a plain wrapper, of a decorator that knows neither,
    stands before it.
    """
    if inspect.iscoroutine(result):
        result.close()  # never awaited, which Python need not mention as well
        raise TaskLockError(
            f"{_called(function)} returned a coroutine: its body would run after its lock, or its turn; put the"
            " decorator directly above its 'async def', below the one that hides it"
        )
    body = result.gen if type(result).__module__ == "contextlib" and hasattr(result, "gen") else result
    if not isinstance(body, GeneratorType | AsyncGeneratorType):
        return
    code = body.gi_code if isinstance(body, GeneratorType) else body.ag_code
    # A generator expression is a result like any other; the function itself as a generator is not.
    if code is getattr(inspect.unwrap(function), "__code__", None):
        raise TaskLockError(
            f"{_called(function)} is a generator behind another decorator: its body would run after its lock, or its"
            " turn; lock inside of it instead"
        )


def _called(function: Any) -> str:
    return str(getattr(function, "__qualname__", None) or repr(function))


def wrap(function: F, new_call: Callable[[tuple[Any, ...], dict[str, Any]], Call], signature: inspect.Signature) -> F:
    """Wrap ``function``: each call goes through the ``Call`` that ``new_call`` makes of its arguments."""
    if is_async(function):

        @functools.wraps(function)
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            call = new_call(args, kwargs)
            try:
                async with AsyncExitStack() as stack:
                    if await call.aenter(stack):
                        return await function(*args, **kwargs)
            except BaseException:
                call.struck(later=True)
                raise
            return call.skipped

    else:

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            call = new_call(args, kwargs)
            try:
                with ExitStack() as stack:
                    if call.enter(stack):
                        result = function(*args, **kwargs)
                        check_is_over(function, result)
                        return result
            except BaseException:
                call.struck()
                raise
            return call.skipped

    wrapper.__signature__ = signature  # type: ignore[attr-defined]  # Celery checks arguments against it
    return cast(F, wrapper)
