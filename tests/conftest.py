"""The servers of a test run. What is tested stands in the tests."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from asgiref.sync import SyncToAsync
from django.core.management.color import no_style
from django.db import connections
from django.test import TransactionTestCase

from tests.support import environment
from tests.support.redis_server import NoRedis, RedisServer

pytest.register_assert_rewrite("tests.contract.conformance")

_made_here = ExitStack()


def pytest_addoption(parser: pytest.Parser) -> None:
    """The selection of ``make test``."""
    parser.addoption(
        "--quick",
        action="store_true",
        help="run the tests marked quick, unless -m, -k, --last-failed, a file or a test says what to run",
    )


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """How many processes ``-n auto`` is: three times as many as processors, because tests wait more than they work.

    None beside this one where a Redis or a broker was named, because its tests would be in each other's way, and where
    files or tests were, or what failed is tried again, because those are few.
    """
    named = environment.redis_is_named() or os.environ.get(environment.BROKER)
    if named or _names_files(config) or config.option.lf:
        return 0
    return 3 * len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 3 * (os.cpu_count() or 1)


def _names_files(config: pytest.Config) -> bool:
    return config.args_source is pytest.Config.ArgsSource.ARGS


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Make what was not named and no parent process has made: a directory, and a Redis."""
    option = config.option
    if option.quick and not (option.markexpr or option.keyword or option.lf or _names_files(config)):
        option.markexpr = "quick"
    if option.collectonly:
        return
    directory, port = environment.directory(), environment.embedded_redis_port()
    if not directory.exists():
        directory.mkdir(mode=0o700)
        _made_here.callback(shutil.rmtree, directory, ignore_errors=True)
    if option.dist != "no":  # the workers have a Redis each, and this process tests nothing
        if environment.redis_is_named():
            raise pytest.UsageError(f"tests in parallel would flush each other's {environment.REDIS}: take -n0")
        return
    if port is None:
        return
    server = RedisServer(port)
    try:
        if not server.answers():
            _made_here.enter_context(server)
    except NoRedis as problem:
        pytest.exit(str(problem), returncode=pytest.ExitCode.USAGE_ERROR)


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Import this process's share of the files first, of several: what is compiled already, the others only read."""
    said = getattr(session.config, "workerinput", None)
    if said is None or _names_files(session.config):
        return
    files = sorted(Path(__file__).parent.glob("*/test_*.py"))
    for file in files[int(said["workerid"].removeprefix("gw")) :: said["workercount"]]:
        with contextlib.suppress(Exception, pytest.skip.Exception):  # the collection will say so
            importlib.import_module(f"tests.{file.parent.name}.{file.stem}")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what starts Celery workers, and what is quick: all but these, the slow ones and those in a browser."""
    for item in items:
        if "celery_site" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.workers)
        if not any(map(item.get_closest_marker, ("workers", "slow", "browser"))):
            item.add_marker(pytest.mark.quick)


def pytest_collection_finish() -> None:
    """What was imported and collected stays to the end: no collection need look at it, which took up to a second, in
    which no heartbeat beats."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Leave nothing running and nothing lying about. A killed run takes its Redis along: see ``RedisServer``."""
    _made_here.close()


@pytest.fixture(scope="session")
def django_db_modify_db_settings_xdist_suffix() -> None:
    """Nothing: the settings name a database of this worker's own, so that its child processes find that, too."""


@pytest.fixture(scope="session", autouse=True)
def _flushed_in_no_time() -> Iterator[None]:
    """A test's rows are deleted when it ends, but not Django's content types and permissions, which ``flush`` makes
    anew: that took longer than most tests do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransactionTestCase, "_fixture_teardown", _flush)
        yield


def _flush(case: TransactionTestCase) -> None:
    for alias in case._databases_names(include_mirrors=False):
        connection = connections[alias]
        tables = connection.introspection.django_table_names(only_existing=True, include_views=False)
        tables = [table for table in tables if table not in ("django_content_type", "auth_permission")]
        connection.ops.execute_sql_flush(connection.ops.sql_flush(no_style(), tables))


@pytest.fixture(autouse=True)
def _what_a_test_leaves() -> Iterator[None]:
    """Guards that it registered, bodies that it broke off, the connection of its coroutines and what they still do on
    it when they were cancelled, and what this process remembers of locks and limits: not the next one's concern."""
    from django_tasklock import testing
    from django_tasklock.db.connections import Scope
    from django_tasklock.guards import guard as guards

    before = guards.registered()
    yield
    queries = SyncToAsync.single_thread_executor
    if queries._threads:  # asgiref's thread stays. In its query pytest-django would refuse it the database, half-way
        queries.submit(connections.close_all).result()
    guards.replace_registered(before)
    Scope.active.clear()
    testing.reset()


@pytest.fixture
def redis_server() -> Iterator[RedisServer]:
    """A Redis of this test's own, to be killed and started again as it likes; stopped afterwards."""
    with RedisServer() as server:
        yield server
