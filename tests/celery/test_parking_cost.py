"""What parking costs, counted: trips to the store of locks, statements and connections to the database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import redis
from django.db import connection
from django.db.backends.signals import connection_created
from django.test.utils import CaptureQueriesContext

from django_tasklock.backends import get_backend
from django_tasklock.celery import parked_messages
from django_tasklock.celery.parking.promotion import promote
from django_tasklock.types import AcquireRequest
from tests.support.guards import new_token
from tests.support.once_app import OnceApp, once_app
from tests.support.proxy import Proxy
from tests.support.redis_server import RedisServer

pytest_plugins = ["tests.support.redis_fixtures"]
pytestmark = [pytest.mark.redis, pytest.mark.django_db(transaction=True)]


NEXT = 1
"""Statements that look who is next when a promoted message has run: the first ones of the next promotion, if any."""
OPENING = ("PRAGMA", "SET SESSION", "SET SQL_AUTO", "SELECT set_config", "SELECT VERSION")
"""How the statements begin that belong to a new connection."""


class Cost(NamedTuple):
    trips: int
    statements: int
    connections: int


class Bench:
    """One app, a store of locks that knows the scripts, and a database without a connection."""

    def __init__(self, app: OnceApp, proxy: Proxy, server: RedisServer) -> None:
        self.app, self.proxy = app, proxy
        self.server = redis.Redis.from_url(server.url)

    def hold(self) -> Callable[[], object]:
        """Take the lock ``a`` for somebody else; how to let it go."""
        token = new_token()
        get_backend().acquire(AcquireRequest("a", token, 60_000, 60_000, "{}"))
        return lambda: get_backend().release("a", token)

    def cost(self, act: Callable[[], object]) -> Cost:
        opened: list[object] = []
        connection.close()
        connection_created.connect(count := lambda **how: opened.append(how), weak=False)
        try:
            with CaptureQueriesContext(connection) as queries:
                connection.close()
                opened.clear()
                with self.proxy.recorded() as sent:
                    act()
            return Cost(len(sent), len([one for one in queries if not one["sql"].startswith(OPENING)]), len(opened))
        finally:
            connection_created.disconnect(count)


@pytest.fixture
def bench(configure: Any, redis_server: RedisServer) -> Iterator[Bench]:
    configure(LOCATION=redis_server.url, METRICS=False)
    with once_app() as app, Proxy(redis_server.url) as proxy:
        configure(LOCATION=proxy.url, METRICS=False)
        made = Bench(app, proxy, redis_server)
        for word in ("queue", "coalesce"):  # the server learns the scripts
            task = app.task(key="a", on_conflict=word, acks_late=True)
            for _ in range(2):
                free = made.hold()
                task.delay()
                app.run()
                free()
                get_backend().count_before("a", 2**52, forget=True)
                if promote("a", app.app):
                    app.run()
        app.all()
        yield made
        made.server.close()


def test_late_queue_that_nobody_has_parked(bench: Bench) -> None:
    """F46: a connection and a DELETE for each message."""
    task = bench.app.task(key="a", on_conflict="queue", acks_late=True)
    task.delay()
    message = bench.app.take()
    cost = bench.cost(lambda: bench.app.run(message))
    # Whether others are expected, acquire, leave the line, release.
    assert cost == Cost(4, 0, 0)


@pytest.mark.parametrize("late", [False, True])
def test_one_that_does_not_line_up(bench: Bench, late: bool) -> None:
    """The release says whether somebody is parked behind it and whether another delivery has kept a row for it."""
    task = bench.app.task(key="a", acks_late=late)
    for _ in range(2):
        task.delay()
    bench.app.run()  # the server learns the script
    message = bench.app.take()
    assert bench.cost(lambda: bench.app.run(message)) == Cost(2, 0, 0)


@pytest.mark.parametrize(
    ("word", "late", "parking", "promoting", "running"),
    [
        # Insert, let go when its state is stored | read the line, claim | look, take out
        ("queue", False, Cost(3, 2, 1), Cost(2, 2, 1), Cost(4, 2 + NEXT, 1)),
        # ... | ... | look, take up, has ended, remove on a connection of its own
        ("queue", True, Cost(3, 2, 1), Cost(2, 2, 1), Cost(4, 4 + NEXT, 2)),
        # Who else waits, twice: before the lock is asked, and when it is parked
        ("coalesce", False, Cost(3, 4, 1), Cost(1, 2, 1), Cost(4, 2 + NEXT, 1)),
        ("coalesce", True, Cost(3, 4, 1), Cost(1, 2, 1), Cost(4, 4 + NEXT, 2)),
    ],
)
def test_one_that_is_parked_and_promoted(
    bench: Bench, word: str, late: bool, parking: Cost, promoting: Cost, running: Cost
) -> None:
    """Every statement of its life in the table, with those that begin and end a transaction: there are none."""
    task = bench.app.task(key="a", on_conflict=word, acks_late=late)
    free = bench.hold()
    task.delay()
    costs = [bench.cost(bench.app.run)]
    assert len(parked_messages("a")) == 1
    free()
    costs.append(bench.cost(lambda: promote("a", bench.app.app)))
    costs.append(bench.cost(bench.app.run))
    assert parked_messages("a") == []
    most = [parking, promoting, running]
    for number, (mine, limit) in enumerate(zip(costs, most, strict=True)):
        assert all(one <= other for one, other in zip(mine, limit, strict=True)), (number, mine)


@pytest.mark.parametrize(("late", "each"), [(False, 6), (True, 8)])
def test_a_line_is_worked_off(bench: Bench, late: bool, each: int) -> None:
    """So many statements for each message of a line, from its parking until its row is gone."""
    task = bench.app.task(key="a", on_conflict="queue", acks_late=late)
    number = 5
    free = bench.hold()
    for _ in range(number):
        task.delay()
    parked = bench.cost(lambda: [bench.app.run() for _ in range(number)])
    free()

    def work_off() -> None:
        assert promote("a", bench.app.app)
        for _ in range(number):
            bench.app.run()

    ran = bench.cost(work_off)
    assert parked_messages("a") == []
    assert parked.statements + ran.statements == number * each + NEXT
