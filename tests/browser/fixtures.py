"""``pytest_plugins = ["tests.browser.fixtures"]``: ``site``, ``visit``, and tests that run in the browser's thread."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator

import pytest

from tests.browser.chromium import Chromium, Visits, find
from tests.browser.example import Example

_running: Chromium | None = None
_failed = pytest.StashKey[bool]()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> object | None:
    """A test that visits pages runs where Playwright can be called."""
    if _running is None or "visit" not in pyfuncitem.fixturenames:
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    _running.do(lambda: pyfuncitem.obj(**arguments))
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember for ``visit`` whether the test itself failed."""
    report = yield
    if report.when == "call":
        item.stash[_failed] = report.failed
    return report


@pytest.fixture(scope="session")
def chromium() -> Iterator[Chromium]:
    """The browser. Without one, tests are skipped; with ``CI=true`` they fail."""
    global _running
    program = find()
    if program is None:
        why = "no Chromium on PATH: apt-get install chromium, or name one in TASKLOCK_TEST_CHROMIUM"
        if os.environ.get("CI") == "true":
            pytest.fail(why)
        pytest.skip(why)
    with Chromium(program) as _running:
        yield _running
    _running = None


@pytest.fixture(scope="session")
def shared_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Example]:
    """One for all tests."""
    with Example(tmp_path_factory.mktemp("site")) as example:
        yield example


@pytest.fixture
def site(shared_site: Example, request: pytest.FixtureRequest) -> Iterator[Example]:
    """The example project, served, as it was at the beginning."""
    shared_site.reset()
    yield shared_site
    shared_site.check_log()


@pytest.fixture
def visit(chromium: Chromium, site: Example, request: pytest.FixtureRequest) -> Iterator[Visits]:
    """``page = visit("operator", dark=True)``. Fails if a console is not empty in the end."""
    yield from visits(chromium, site, request)


def visits(chromium: Chromium, site: Example, request: pytest.FixtureRequest) -> Iterator[Visits]:
    """The same for a site of the caller's own."""
    visit = Visits(chromium, site.address, site.sessions)
    yield visit
    if request.node.stash.get(_failed, False) or visit.problems:
        chromium.do(lambda: visit.failed(request.node.name))
    chromium.do(visit.close)
    assert visit.problems == []
