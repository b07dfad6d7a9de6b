"""``only``: ``pytest_plugins = ["tests.support.celery_site.fixtures", "tests.support.sweep_fixtures"]``."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

# Imported here, so that their guards are registered before a test begins: none takes them along when it ends.
import tests.support.celery_site.once_tasks
import tests.support.celery_site.sweep_tasks  # noqa: F401
from tests.support import sweeper
from tests.support.celery_site.configuration import ENVIRONMENT


@pytest.fixture
def only(celery_site) -> Any:
    """``only("swept_video")``: no other guards are registered, here or in the sweeps that are started."""
    chosen: list[str] = []

    def choose(*tasks: str) -> None:
        chosen[:] = tasks
        sweeper.only(tasks)

    def start(**asked: Any) -> subprocess.Popen[str]:
        environment = {ENVIRONMENT: celery_site.configuration.as_json()}
        return sweeper.start(environment, tasks=chosen, **{"options": {}, **asked})

    choose.start = start  # type: ignore[attr-defined]
    return choose
