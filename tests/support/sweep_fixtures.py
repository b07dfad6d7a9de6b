"""``only``: ``pytest_plugins = ["tests.support.celery_site.fixtures", "tests.support.sweep_fixtures"]``."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from tests.support import sweeper
from tests.support.celery_site.configuration import ENVIRONMENT


@pytest.fixture
def only(celery_site, monkeypatch: pytest.MonkeyPatch) -> Any:
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
