"""A verb of a store, or its twin for coroutines."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

import pytest
from asgiref.sync import async_to_sync

P = ParamSpec("P")
T = TypeVar("T")

TWINS = pytest.mark.parametrize("way", ["sync", "async"])
"""Run the test twice: by the verbs, and by their twins for coroutines."""


def ask(
    way: str, verb: Callable[P, T], twin: Callable[P, Awaitable[T]], /, *arguments: P.args, **options: P.kwargs
) -> T:
    """Return the answer of ``verb``, or of ``twin`` in an event loop of its own."""
    if way == "sync":
        return verb(*arguments, **options)

    async def main() -> T:
        return await twin(*arguments, **options)

    return async_to_sync(main)()
