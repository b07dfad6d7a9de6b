"""A worker that is killed when a body has ended, before the acknowledgement: nobody runs the body again."""

from __future__ import annotations

import pytest

pytest_plugins = ["tests.support.celery_site.fixtures"]
pytestmark = [pytest.mark.broker, pytest.mark.quick]
SITE_TASKS = ["tests.support.celery_site.struck_tasks"]


@pytest.mark.parametrize("who", ["child", "worker"])
@pytest.mark.parametrize("how", ["returns", "raises"])
@pytest.mark.parametrize("kind", ["once", "locked"])
def test_killed(celery_site, who, how, kind):
    celery_site.configure(visibility_timeout=1)
    worker = celery_site.worker()
    celery_site.publish(f"struck_{kind}", "a", who, how)
    celery_site.wait_until(lambda: celery_site.events("struck", "a"))
    if who == "worker":
        celery_site.wait_until(lambda: not worker.alive())
        worker = celery_site.worker()
    celery_site.wait_until(lambda: "is delivered again: it has ended" in worker.log(), 60)
    assert len(celery_site.events("start", "a")) == 1
