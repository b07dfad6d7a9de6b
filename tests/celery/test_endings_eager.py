"""Whoever calls its own task in the middle of it never waits for itself: directly, eagerly, here and in a worker."""

from __future__ import annotations

from itertools import product

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


@pytest.mark.quick
@pytest.mark.parametrize("way", WAYS)
def test_a_task_that_calls_itself(celery_site, way):
    """Here: the outer run is one of the same way. What a call has taken it has given back."""
    celery_site.app.conf.update(task_always_eager=way == "delay")
    for kind, word in product(KINDS, WORDS):
        task, key = celery_site.task(f"{kind}_{word}"), f"{kind}-{word}"
        for inner in (False, True):  # another call after it
            answer = {
                "call": lambda *what, task=task: task(*what),
                "apply": lambda *what, task=task: task.apply(what).result,
                "delay": lambda *what, task=task: task.delay(*what).result,
            }[way](key, way, inner)
            assert answer == "ran" if inner else is_refused(answer), key
            assert celery_site.lock(f"self:{key}") is None
        assert [one.event for one in celery_site.events(key=key)] == ["start", "end"] * 2, key


def test_a_task_that_calls_itself_in_a_worker(celery_site):
    celery_site.worker(concurrency=4, prefetch=20)
    ran = {
        what: celery_site.publish(f"{what[0]}_{what[1]}", "-".join(what), what[2])
        for what in product(KINDS, WORDS, ("call", "apply"))
    }
    for what, result in ran.items():
        state, answer = celery_site.outcome(result)
        assert state == "SUCCESS", what
        assert is_refused(answer), (what, answer)
        key = "-".join(what)
        assert [one.event for one in celery_site.events(key=key)] == ["start", "end"], what
        celery_site.wait_until(lambda key=key: celery_site.lock(f"self:{key}") is None)
