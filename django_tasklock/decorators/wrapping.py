"""Checks of a decorated function and of its result, and the wrapper, for locks and limits alike."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from types import AsyncGeneratorType, GeneratorType
from typing import Any, TypeVar, cast

from django_tasklock.decorators.call import Call, Caller
from django_tasklock.exceptions import TaskLockError
from django_tasklock.host import host
from django_tasklock.names import tenant_awaited

F = TypeVar("F", bound=Callable[..., Any])

FUTURES = (asyncio.Future, Future)  # the first includes tasks


def call_of(function: Any) -> Any:
    """Return the ``__call__`` of the object's type."""
    return type(function).__call__


def without_partial(function: Any) -> Any:
    """Return the function that ``functools.partial`` calls, and any other one as it is."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def layers_of(function: Any) -> Iterator[Any]:
    """Return a function and those that it calls: what its decorators and ``functools.partial`` say that they wrap."""
    while function is not None:
        yield function
        inner = function.func if isinstance(function, functools.partial) else None
        function = inner or getattr(function, "__wrapped__", None)


def is_async(function: Any) -> bool:
    """Tell whether a call returns a coroutine."""
    called = without_partial(function)
    return inspect.iscoroutinefunction(called) or inspect.iscoroutinefunction(call_of(called))


def check_decoratable(function: Any) -> None:
    """Raise ``TaskLockError`` for a function that a lock cannot enclose."""
    name = _called(function)
    if hasattr(function, "apply_async") or hasattr(function, "enqueue"):
        raise TaskLockError(f"{name} already is a task: put the lock decorator below the task decorator")
    called = without_partial(function)
    generates = any(inspect.isgeneratorfunction(f) or inspect.isasyncgenfunction(f) for f in (called, call_of(called)))
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
    """Raise ``TaskLockError`` if ``result`` stands for a body that has not begun, or is not over.

    That is what ``check_has_begun`` refuses; a response that streams; a ``map`` or a ``filter``; and a future that is
    not done: an ``asyncio`` task, or the future of a pool of threads or processes. Its body would run without the lock,
    so it is closed or cancelled, unless a pool runs it already. A response that is rendered later is accepted: its
    context is what the body has found.
    """
    check_has_begun(function, result)
    if getattr(result, "streaming", False) is True:  # Django's, and whatever is one of them
        with contextlib.suppress(AttributeError):
            result.close()
        raise TaskLockError(
            f"{_called(function)} returned a {type(result).__name__}, which is sent after its lock was released: lock"
            " in the generator that it streams, 'with TaskLock(name):' around its loop, or return an HttpResponse"
        )
    if isinstance(result, map | filter):
        raise TaskLockError(
            f"{_called(function)} returned a {type(result).__name__}, which would call its function after its lock:"
            " return a list of it"
        )
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
    """Raise ``TaskLockError`` if ``result`` stands for a body that has not begun: an awaitable, or the generator of any
    function. A generator expression is a valid result.

    ``is_async`` and ``check_decoratable`` do not recognize one behind the plain wrapper of another decorator.
    """
    if hasattr(type(result), "__await__") and not isinstance(result, FUTURES):
        coroutine = isinstance(result, Coroutine)
        if coroutine:
            result.close()  # without Python's warning that it was never awaited
        raise TaskLockError(
            f"{_called(function)} returned a {'coroutine' if coroutine else type(result).__name__} that nothing has"
            " awaited: the body would run after its lock, or its turn; put it directly above its 'async def',"
            " below the one that hides it, and call it with async_to_sync(...) in a Celery task"
        )
    body = result.gen if type(result).__module__ == "contextlib" and hasattr(result, "gen") else result
    if not isinstance(body, GeneratorType | AsyncGeneratorType):
        return
    if body.__name__ == "<genexpr>":
        return
    code = body.gi_code if isinstance(body, GeneratorType) else body.ag_code
    called = without_partial(inspect.unwrap(without_partial(function)))
    own = code in (getattr(called, "__code__", None), getattr(call_of(called), "__code__", None))
    what = "is a generator behind another decorator" if own else f"returned the generator {body.__name__}"
    raise TaskLockError(
        f"{_called(function)} {what}: its body would run after its lock, or its turn; lock inside of it instead"
    )


def _called(function: Any) -> str:
    return str(getattr(function, "__qualname__", None) or repr(function))


def wrap(
    function: F,
    new_call: Callable[[tuple[Any, ...], dict[str, Any]], Call],
    signature: inspect.Signature,
    decorated: object,
) -> F:
    """Wrap ``function``: each call runs in the ``Call`` that ``new_call`` makes from its arguments.

    ``decorated``: its ``lock`` or ``limiter``, by which the host knows it.
    """

    def caller(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Caller:
        call = new_call(args, kwargs)
        return host().join(decorated, call) or Caller(call)

    if is_async(function):

        @functools.wraps(function)
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            async def body() -> Any:
                result = await function(*args, **kwargs)
                check_is_over(function, result)
                return result

            async with tenant_awaited():
                call = caller(args, kwargs)
            return await call.arun(body)

    else:

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            def body() -> Any:
                result = function(*args, **kwargs)
                check_is_over(function, result)
                return result

            return caller(args, kwargs).run(body)

    wrapper.__signature__ = signature  # type: ignore[attr-defined]  # Celery checks arguments against it
    return cast(F, wrapper)
