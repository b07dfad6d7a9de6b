"""The plug-in for pytest, which finds it by itself: see docs/testing.md.

Neither Django nor anything else of this package is imported before a test asks for locks, and nothing changes for
tests that do not ask. ``-p no:tasklock`` leaves it out.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

STORES = ("memory", "off", "settings")
INI = "tasklock_store"

pytest.register_assert_rewrite("django_tasklock.testing.conformance")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Take the store of all tests from the configuration."""
    parser.addini(
        INI,
        "where the locks of tests are that do not say: memory; off, which grants everything; or settings, where"
        " the settings have them",
        default="settings",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known, and refuse a configuration that cannot work."""
    config.addinivalue_line(
        "markers", 'tasklock(store): where the locks of this test are: "memory", "off" or "settings" (django_tasklock)'
    )
    _known(config.getini(INI), f"{INI} of the configuration")


@pytest.fixture
def tasklock(_tasklock_store: str, request: pytest.FixtureRequest) -> ModuleType:
    """Return ``django_tasklock.testing``; the locks, limits and permits of this test are in memory, and its own.

    Unless the test is marked otherwise: ``@pytest.mark.tasklock("off")`` or ``("settings")``.
    """
    from django_tasklock import testing

    return testing


@pytest.fixture(autouse=True)
def _tasklock_store(request: pytest.FixtureRequest) -> Iterator[str]:
    """Have the store of this test in force, if it says which, or the configuration does."""
    marker = request.node.get_closest_marker("tasklock")
    if marker is not None:
        store = _known(_argument(marker), f"the marker of {request.node.nodeid}")
    elif "tasklock" in request.fixturenames and request.config.getini(INI) == "settings":
        store = "memory"
    else:
        store = request.config.getini(INI)
    if store == "settings":
        yield store
        return
    _ensure_settings(request.node.nodeid)
    from django_tasklock import testing
    from django_tasklock.testing.stores import setting

    if "settings" in request.fixturenames and request.config.pluginmanager.has_plugin("django"):
        # What it has changed is put back in order by nobody else.
        settings: Any = request.getfixturevalue("settings")
        settings.TASKLOCK = setting(store)
        testing.reset()
        yield store
        testing.reset()
    else:
        with testing.memory_store() if store == "memory" else testing.locks_off():
            yield store


def _argument(marker: pytest.Mark) -> object:
    if len(marker.args) == 1 and not marker.kwargs:
        return marker.args[0]
    return marker.kwargs.get("store") if not marker.args and set(marker.kwargs) == {"store"} else None


def _known(store: object, where: str) -> str:
    if store not in STORES:
        known = ", ".join(map(repr, STORES))
        raise pytest.UsageError(f"{where}: the store of the locks must be one of {known}, not {store!r}")
    return str(store)


def _ensure_settings(test: str) -> None:
    from django.conf import settings
    from django.core.exceptions import ImproperlyConfigured

    try:
        settings.INSTALLED_APPS  # noqa: B018
    except ImproperlyConfigured as error:
        raise pytest.UsageError(
            f"{test} asks for locks, which need Django's settings: set DJANGO_SETTINGS_MODULE, and install"
            " pytest-django, which sets Django up"
        ) from error
