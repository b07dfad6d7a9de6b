"""Run one test with the verbs of a store, and with their twins for coroutines."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

import pytest
from asgiref.sync import async_to_sync

P = ParamSpec("P")
T = TypeVar("T")

TWINS = pytest.mark.parametrize("way", ["sync", "async"])
"""Run the test twice: with the verbs, and with their twins for coroutines."""


def ask(
    way: str, verb: Callable[P, T], twin: Callable[P, Awaitable[T]], /, *arguments: P.args, **options: P.kwargs
) -> T:
    """Call ``verb``, or ``twin`` in a new event loop, and return the answer."""
    if way == "sync":
        return verb(*arguments, **options)

    async def main() -> T:
        return await twin(*arguments, **options)

    return async_to_sync(main)()
