"""Instances are killed, stopped and cut off, one at a time and two at a time, and come back empty: nobody overlaps."""

from __future__ import annotations

import contextlib
import itertools
import random
import signal
import threading
import time
from contextlib import ExitStack

import pytest

from django_tasklock.exceptions import BackendUnavailable
from django_tasklock.types import Grant
from tests.support import quorum
from tests.support.proxy import Proxy
from tests.support.redis_server import RedisServer
from tests.support.stores import an_ask

pytestmark = [pytest.mark.redis, pytest.mark.slow]
LEASE = 400  # ms
SECONDS = 12.0
Hold = tuple[float, float, int]
"""When it was granted, until when the holder may count on it, and the fence."""


def contend(urls: list[str], ends: float, holds: list[Hold], errors: list[BaseException]) -> None:
    """Take the lock, hold it for a moment or until the lease is over, as a process that died does; again and again."""
    backend = quorum.of(urls)
    try:
        while time.monotonic() < ends:
            mine = an_ask("video:1", ttl=LEASE)
            asked = time.monotonic()
            try:
                answer = backend.acquire(mine)
            except BackendUnavailable:
                time.sleep(0.01)
                continue
            if not isinstance(answer, Grant):
                time.sleep(random.uniform(0, 0.01))
                continue
            granted = time.monotonic()
            until = asked + LEASE / 1000
            if random.random() < 0.9:
                time.sleep(random.uniform(0, 0.03))
                until = min(until, time.monotonic())
                holds.append((granted, until, answer.fence))
                with contextlib.suppress(BackendUnavailable):  # it ends with its lease
                    backend.release("video:1", mine.token)
            else:
                holds.append((granted, until, answer.fence))
    except BaseException as error:
        errors.append(error)
    finally:
        backend.close()


def harm(servers: list[RedisServer], proxies: list[Proxy], number: int) -> None:
    """Do something to so many of them, and undo it."""
    chosen = random.sample(range(len(servers)), number)
    what = random.choice(["stop", "cut", "hang", "refuse", "kill"] if number == 1 else ["stop", "hang", "refuse"])
    for index in chosen:
        if what == "stop":
            servers[index].process.send_signal(signal.SIGSTOP)
        elif what == "kill":
            servers[index].kill()
        else:
            getattr(proxies[index], what)()
    time.sleep(random.uniform(0.1, 0.6))
    for index in chosen:
        if what == "stop":
            servers[index].process.send_signal(signal.SIGCONT)
        elif what == "kill":
            servers[index].start()
        proxies[index].heal()
    time.sleep(random.uniform(2, 3) * LEASE / 1000 if what == "kill" else 0.2)  # no second one loses its data meanwhile


@pytest.mark.parametrize("number", [3, 5])
def test_no_two_hold_it_while_a_lease_is_intact(number: int) -> None:
    with ExitStack() as stack:
        servers = [stack.enter_context(RedisServer()) for _ in range(number)]
        proxies = [stack.enter_context(Proxy(server.url)) for server in servers]
        urls = [proxy.url for proxy in proxies]
        first = quorum.of(urls)
        first.acquire(an_ask("first", ttl=LEASE))  # all are there, and empty
        ends = time.monotonic() + SECONDS
        holds: list[Hold] = []
        errors: list[BaseException] = []
        threads = [threading.Thread(target=contend, args=(urls, ends, holds, errors)) for _ in range(4)]
        for thread in threads:
            thread.start()
        while time.monotonic() < ends - 2:
            harm(servers, proxies, random.choice([1, 1, 1, number // 2 + 1]))
        for thread in threads:
            thread.join(60)
        first.close()
    assert errors == []
    assert len(holds) > 20
    holds.sort()
    overlaps = [(one, other) for one, other in itertools.pairwise(holds) if other[0] < one[1]]
    assert overlaps == []
    assert [fence for _, _, fence in holds] == sorted({fence for _, _, fence in holds})
