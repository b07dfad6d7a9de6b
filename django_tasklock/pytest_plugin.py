"""The pytest plug-in, which pytest loads by its entry point. See docs/testing.md.

It imports Django and the rest of this package only for tests that use its fixture or its marker, and changes nothing
for others. ``-p no:tasklock`` disables it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any

import pytest

STORES = ("memory", "settings")
INI = "tasklock_store"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option for the store of all tests."""
    parser.addini(
        INI,
        "the store of the locks in tests without a marker: memory, or settings, that of the settings",
        default="settings",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and check the option."""
    config.addinivalue_line("markers", 'tasklock(store): the store of the locks in this test: "memory" or "settings"')
    _known(config.getini(INI), f"{INI} of the configuration")


@pytest.fixture
def tasklock(_tasklock_store: str, request: pytest.FixtureRequest) -> ModuleType:
    """Return ``django_tasklock.testing``, and keep the locks, limits and permits of this test in a memory of its own.

    ``@pytest.mark.tasklock("settings")`` selects the store of the settings.
    """
    from django_tasklock import testing

    return testing


@pytest.fixture(autouse=True)
def _tasklock_store(request: pytest.FixtureRequest) -> Iterator[str]:
    """Install the store that the test or the configuration selects, and return its name."""
    marker = request.node.get_closest_marker("tasklock")
    if marker is not None:
        store = _known(_argument(marker), f"the marker of {request.node.nodeid}")
    elif "tasklock" in request.fixturenames and request.config.getini(INI) == "settings":
        store = "memory"
    else:
        store = request.config.getini(INI)
    if store == "settings":
        with _known_to_workers():
            yield store
        return
    _ensure_settings(request.node.nodeid)
    from django_tasklock import testing
    from django_tasklock.testing.stores import memory_setting

    with _known_to_workers():
        if "settings" in request.fixturenames and request.config.pluginmanager.has_plugin("django"):
            # Only this fixture restores the settings in the right order.
            settings: Any = request.getfixturevalue("settings")
            settings.TASKLOCK = memory_setting()
            testing.reset()
            yield store
            testing.reset()
        else:
            with testing.memory_store():
                yield store


def _known_to_workers() -> AbstractContextManager[None]:
    """Return a block in which workers in this process know of the test and its transaction."""
    module = sys.modules.get("django_tasklock.db.transactions")  # otherwise no guarded task was imported
    return nullcontext() if module is None else module.known_as_test()


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
