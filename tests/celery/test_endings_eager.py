"""Whoever calls its own task in the middle of it never waits for itself: directly, eagerly, here and in a worker."""

from __future__ import annotations

import pytest

from tests.support.celery_site.canvas_tasks import WORDS
from tests.support.celery_site.eager_tasks import WAYS

pytest_plugins = ["tests.support.celery_site.fixtures"]
SITE_TASKS = ["tests.support.celery_site.eager_tasks"]

KINDS = ("once", "decorated")
REFUSED = {"TaskLockAcquireError", "TaskLockError", "RejectedHere"}


def is_refused(answer):
    """The inner run was refused or skipped: the outer one was told so."""
    return (answer["reason"] if isinstance(answer, dict) else answer) in {*REFUSED, "already_processing"}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_task_that_calls_itself(celery_site, kind, way):
    """Here: the outer run is one of the same way."""
    celery_site.app.conf.update(task_always_eager=way == "delay")
    for word in WORDS:
        task = celery_site.task(f"{kind}_{word}")
        if way == "call":
            answer = task(word, way)
        else:
            answer = (task.apply((word, way)) if way == "apply" else task.delay(word, way)).result
        assert is_refused(answer), word
        assert [one.event for one in celery_site.events(key=word)] == ["start", "end"], word
        assert celery_site.lock(f"self:{word}") is None


@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_a_task_that_calls_itself_in_a_worker(celery_site, pool):
    celery_site.worker(pool=pool, concurrency=4, prefetch=20)
    ran = {
        (kind, word, way): celery_site.publish(f"{kind}_{word}", f"{kind}-{word}-{way}", way)
        for kind in KINDS
        for word in WORDS
        for way in ("call", "apply")
    }
    for what, result in ran.items():
        state, answer = celery_site.outcome(result)
        assert state == "SUCCESS", what
        assert is_refused(answer), (what, answer)
        key = "-".join(what)
        assert [one.event for one in celery_site.events(key=key)] == ["start", "end"], what
        celery_site.wait_until(lambda key=key: celery_site.lock(f"self:{key}") is None)


@pytest.mark.parametrize("kind", KINDS)
def test_a_direct_call_and_another_after_it(celery_site, kind):
    """What a call has taken it has given back."""
    task = celery_site.task(f"{kind}_wait")
    for _ in range(2):
        assert task("a", "call", True) == "ran"
        assert task.apply(("a", "apply", True)).result == "ran"
        assert celery_site.lock("self:a") is None
