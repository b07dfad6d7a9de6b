"""The servers of a test run. What is tested stands in the tests."""

from __future__ import annotations

import gc
import shutil
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.support import environment
from tests.support.redis_server import NoRedis, RedisServer

_made_here = ExitStack()


def pytest_configure(config: pytest.Config) -> None:
    """Make what was not named and no parent process has made: a directory, and a Redis."""
    if config.option.collectonly:
        return
    directory, port = environment.directory(), environment.embedded_redis_port()
    if not directory.exists():
        directory.mkdir(mode=0o700)
        _made_here.callback(shutil.rmtree, directory, ignore_errors=True)
    if port is None:
        return
    server = RedisServer(port)
    try:
        if not server.answers():
            _made_here.enter_context(server)
    except NoRedis as problem:
        pytest.exit(str(problem), returncode=pytest.ExitCode.USAGE_ERROR)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what starts Celery workers."""
    for item in items:
        if "celery_site" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.workers)


def pytest_collection_finish() -> None:
    """What was imported and collected stays to the end: no collection need look at it, which took up to a second, in
    which no heartbeat beats."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Leave nothing running and nothing lying about. A killed run takes its Redis along: see ``RedisServer``."""
    _made_here.close()


@pytest.fixture(autouse=True)
def _what_a_test_leaves() -> Iterator[None]:
    """Guards that it registered, locks and permits that its thread did not give back: not the next one's concern."""
    from django_tasklock.guards import guard as guards
    from django_tasklock.locks.lease import holds_here

    before = list(guards._registered)
    yield
    guards._registered[:] = before
    holds_here().clear()
    holds_here().permits.clear()


@pytest.fixture
def redis_server() -> Iterator[RedisServer]:
    """A Redis of this test's own, to be killed and started again as it likes; stopped afterwards."""
    with RedisServer() as server:
        yield server
