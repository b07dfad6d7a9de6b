"""``celery_site``: see ``Site``. ``pytest_plugins = ["tests.support.celery_site.fixtures"]``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import brokers
from tests.support.celery_site import journal
from tests.support.celery_site.site import Site


@pytest.fixture
def celery_site(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    transactional_db: None,
    settings: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Site]:
    """A site with the tasks of ``celery_site.tasks`` and those of the modules in the test module's ``SITE_TASKS``.

    The messages of a test that is marked ``broker`` go through RabbitMQ where ``TASKLOCK_TEST_BROKER`` names one.
    """
    monkeypatch.setenv(journal.ENVIRONMENT, str(tmp_path / "journal"))
    broker = brokers.named() if request.node.get_closest_marker("broker") else None
    with Site(tmp_path, settings, broker, tuple(getattr(request.module, "SITE_TASKS", ()))) as site:
        yield site
    for worker in site.workers:
        print(f"--- {worker.name}\n{worker.log()}")  # shown by pytest if the test failed
