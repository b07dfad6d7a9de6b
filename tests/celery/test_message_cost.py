"""Publishing a ``OnceTask`` costs no trip, and ``unique`` two; a message whose lock is free costs those of the lock.

And nothing in the database.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from django.db import connection
from django.db.backends.signals import connection_created
from django.test.utils import CaptureQueriesContext

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

    def __init__(self, app: OnceApp, proxy: Proxy) -> None:
        self.app, self.proxy = app, proxy

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
        for options in ({"on_conflict": "queue"}, {"unique": "until_finish"}):  # the server learns the scripts
            app.task(key="warm", acks_late=True, **options).delay()
            app.run()
        yield Bench(app, proxy)


@pytest.mark.parametrize(
    ("options", "trips"), [({}, 0), ({"on_conflict": "coalesce"}, 1), ({"unique": "until_start"}, 2)]
)
def test_of_a_publish(bench: Bench, options: dict[str, Any], trips: int) -> None:
    task = bench.app.task(key="a", **options)
    assert bench.cost(task.delay).trips == trips
    if "unique" in options:
        assert bench.cost(task.delay).trips == 1  # that was not published


def test_of_a_queued_one_that_nobody_has_parked(bench: Bench) -> None:
    """F46: a connection and a DELETE for each message."""
    task = bench.app.task(key="a", on_conflict="queue", acks_late=True)
    task.delay()
    message = bench.app.take()
    cost = bench.cost(lambda: bench.app.run(message))
    assert (cost.statements, cost.connections) == (0, 0)


def test_of_one_that_does_not_line_up(bench: Bench) -> None:
    """The release says whether somebody is parked behind it, and leaves the mark of the message's end."""
    bench.app.task(key="a", ignore_result=True).delay()
    message = bench.app.take()
    assert bench.cost(lambda: bench.app.run(message)) == Cost(2, 0, 0)


def test_of_one_whose_result_is_stored(bench: Bench) -> None:
    """The mark of its end is left after that."""
    bench.app.task(key="a").delay()
    message = bench.app.take()
    assert bench.cost(lambda: bench.app.run(message)) == Cost(3, 0, 0)
