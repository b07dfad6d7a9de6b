"""A store that is closed while other threads use it: afterwards none of its connections is open."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis.connection import AbstractConnection

from django_tasklock.backends.contract.stores import LockStore
from django_tasklock.backends.redis import client
from django_tasklock.types import Busy, Released, Renewal, RenewalResult
from tests.support.stores import BEYOND, QUEUEING, an_ask, clear, eventually, granted, make, new_token, stores
from tests.support.twins import thread_of

NAME = "video:1"


@pytest.fixture(params=stores("redis", *BEYOND))
def kind(request: pytest.FixtureRequest) -> str:
    """The name of a store, which is empty."""
    clear(request.param)
    return request.param


@pytest.fixture
def other(kind: str) -> Iterator[LockStore]:
    """As another process has it."""
    found = make(kind)
    yield found
    found.close()


@pytest.fixture
def opened(other: LockStore, monkeypatch: pytest.MonkeyPatch) -> list[AbstractConnection]:
    """The connections of redis-py that were made since the test began."""
    found: list[AbstractConnection] = []
    init = AbstractConnection.__init__

    def recorded(connection: AbstractConnection, *arguments: Any, **options: Any) -> None:
        init(connection, *arguments, **options)
        found.append(connection)

    other.get(NAME)
    monkeypatch.setattr(AbstractConnection, "__init__", recorded)
    return found


@pytest.fixture
def backend(kind: str, opened: list[AbstractConnection]) -> Iterator[LockStore]:
    """As this process has it, used before; the test closes it."""
    found = make(kind)
    found.get(NAME)
    yield found
    found.close()


def still_open(connections: list[AbstractConnection]) -> list[AbstractConnection]:
    """Those that are open. There must have been some."""
    assert connections
    return [connection for connection in connections if connection._sock is not None]


def during_requests(patched: pytest.MonkeyPatch, work: Callable[[], object]) -> None:
    """Let ``work`` be done when a request was sent, and before its connection is put back."""

    def followed(method: Callable[..., Any]) -> Callable[..., Any]:
        def run(connection: Any, *words: Any) -> Any:
            result = method(connection, *words)
            work()
            return result

        return run

    patched.setattr(client, "ask", followed(client.ask))


def test_a_request_that_was_sent_before(
    backend: LockStore, opened: list[AbstractConnection], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent, closed = threading.Event(), threading.Event()
    answers: list[Any] = []

    def wait() -> None:
        sent.set()
        assert closed.wait(10)

    during_requests(monkeypatch, wait)
    thread = thread_of(lambda: answers.append(backend.acquire(an_ask(NAME))))
    thread.start()
    assert sent.wait(10)
    backend.close()
    closed.set()
    thread.join(10)
    assert granted(answers[0])
    eventually(lambda: not still_open(opened))  # of several instances one may be asked a moment longer


def test_requests_that_come_after(kind: str, backend: LockStore, opened: list[AbstractConnection]) -> None:
    """Those of a heartbeat, for example, whose holder acquired its lock before the settings were changed."""
    mine = an_ask(NAME)
    granted(backend.acquire(mine))
    backend.close()
    assert backend.renew([Renewal(NAME, mine.token, 60_000)]) == [RenewalResult.RENEWED]
    if kind in ("redis", *QUEUEING):
        assert backend.permits.members("api") == []
    assert backend.release(NAME, mine.token) is Released.RELEASED
    eventually(lambda: not still_open(opened))  # of several instances one may be asked a moment longer


@pytest.mark.parametrize("handed_over", [True, False])
def test_a_waiter(backend: LockStore, other: LockStore, opened: list[AbstractConnection], handed_over: bool) -> None:
    token = new_token()
    granted(other.acquire(an_ask(NAME, token)))
    with backend.waiter(an_ask(NAME)) as waiter:
        assert isinstance(waiter.acquire(), Busy)
        backend.close()
        if handed_over:
            other.release(NAME, token)
            assert granted(waiter.wait(10) or waiter.acquire())
    eventually(lambda: not still_open(opened))  # of several instances one may be asked a moment longer
