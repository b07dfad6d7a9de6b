"""A message that finds its lock free costs nothing in the database, and no trip beside those of its lock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import redis
from django.db import connection
from django.db.backends.signals import connection_created
from django.test.utils import CaptureQueriesContext

from django_tasklock.backends import get_backend
from django_tasklock.celery.queue.promoter import promote
from django_tasklock.types import AcquireRequest
from tests.support.guards import new_token
from tests.support.once_app import OnceApp, once_app
from tests.support.proxy import Proxy
from tests.support.redis_server import RedisServer

pytest_plugins = ["tests.support.redis_fixtures"]
pytestmark = [pytest.mark.redis, pytest.mark.django_db(transaction=True)]


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
    assert (cost.statements, cost.connections) == (0, 0)


@pytest.mark.parametrize("late", [False, True])
def test_one_that_does_not_line_up(bench: Bench, late: bool) -> None:
    """The release says whether somebody is parked behind it and whether another delivery has kept a row for it."""
    task = bench.app.task(key="a", acks_late=late)
    for _ in range(2):
        task.delay()
    bench.app.run()  # the server learns the script
    message = bench.app.take()
    assert bench.cost(lambda: bench.app.run(message)) == Cost(2, 0, 0)
