"""``pytest_plugins = ["tests.browser.fixtures"]``: ``site``, ``visit``, and tests that run in the browser's thread."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.browser.chromium import Chromium, Visits, find
from tests.browser.example import Example


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> object | None:
    """A test that visits pages runs where Playwright can be called."""
    visit = pyfuncitem.funcargs.get("visit")
    if not isinstance(visit, Visits):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    visit.run(lambda: pyfuncitem.obj(**arguments), pyfuncitem.name)
    return True


@pytest.fixture(scope="session")
def chromium() -> Iterator[Chromium]:
    """The browser. Without one, tests are skipped; with ``CI=true`` they fail."""
    program = find()
    if program is None:
        why = "no Chromium on PATH: apt-get install chromium, or name one in TASKLOCK_TEST_CHROMIUM"
        if os.environ.get("CI") == "true":
            pytest.fail(why)
        pytest.skip(why)
    with Chromium(program) as running:
        yield running


@pytest.fixture(scope="session")
def shared_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Example]:
    """One for all tests."""
    with Example(tmp_path_factory.mktemp("site")) as example:
        yield example


@pytest.fixture
def site(shared_site: Example) -> Iterator[Example]:
    """The example project, served, as it was at the beginning."""
    shared_site.reset()
    yield shared_site
    shared_site.check_log()


@pytest.fixture
def visit(chromium: Chromium, site: Example) -> Iterator[Visits]:
    """``page = visit(dark=True)``: an operator's. Fails if a console is not empty in the end."""
    visit = Visits(chromium, site.address, site.session)
    yield visit
    chromium.do(visit.close)
    assert visit.problems == []
