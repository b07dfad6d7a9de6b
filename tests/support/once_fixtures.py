"""``app``: a fixture for tests that need no store but this process's memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from django_tasklock.backends.memory import reset
from tests.support.guards import MEMORY
from tests.support.once_app import OnceApp, once_app

__all__ = ["app"]


@pytest.fixture
def app(settings: Any) -> Iterator[OnceApp]:
    """An app, and its locks in memory."""
    settings.TASKLOCK = {**MEMORY, "TIMEOUT": 1000}
    reset()
    with once_app() as made:
        yield made
