"""Every way in which a body ends by itself, and messages that never begin: what they leave behind.

The lease is a minute: what is free before that did not wait for it. Each row runs as a
``OnceTask`` and decorated, in a real worker.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tests.support.endings import LEASE, Begun, begin, revoke
from tests.support.pools import needs

pytest_plugins = ["tests.support.celery_site.fixtures"]
SITE_TASKS = ["tests.support.celery_site.ending_tasks"]

BY_ITSELF = [
    # how it ends  its result  the row      what its body did
    ("returns", "SUCCESS", "ready", "start end"),
    ("raises", "FAILURE", "failed", "start raised"),
    ("ignores", "PENDING", "failed", "start raised"),
    ("rejects", "PENDING FAILURE", "failed", "start raised"),  # it has no result; in newer Celery it has failed
    ("requeues", "SUCCESS", "ready", "start raised start end"),
    ("retries", "SUCCESS", "ready", "start raised start end"),
    ("autoretries", "SUCCESS", "ready", "start raised start end"),
    ("exits", "FAILURE", "failed", "start raised"),
]
REQUEUED_EARLY = ("requeues", "PENDING", "failed", "start raised")
"""It was acknowledged: nothing comes back."""


@pytest.mark.broker
@pytest.mark.parametrize(
    ("pool", "late"), [("prefork", False), ("prefork", True), ("threads", True), ("solo", True), ("gevent", True)]
)
def test_bodies_that_end_by_themselves(celery_site, pool, late):
    """``exits``: not taken for a worker that was lost, after which the message would be started again without end."""
    needs(pool)
    celery_site.configure(lease=LEASE, task_acks_late=late, task_reject_on_worker_lost=late)
    # SQLite waits for its own lock without letting other greenlets run: no two of them may write to it at once here.
    celery_site.worker(pool=pool, concurrency=1 if pool == "gevent" else 2, prefetch=4)
    for row in BY_ITSELF:
        how, states, state, body = REQUEUED_EARLY if row[0] == "requeues" and not late else row
        print(f"a body that {how}")
        for one in begin(celery_site, how):
            celery_site.wait_until(lambda one=one, body=body: one.told() == body.split())
            one.left(states, state)
            assert one.told() == body.split()


def test_a_process_whose_body_calls_exit_lives_on(celery_site):
    celery_site.configure(lease=LEASE, task_acks_late=True, task_reject_on_worker_lost=True)
    celery_site.worker(concurrency=1)
    ran = begin(celery_site, "exits")
    for one in ran:
        assert "sys.exit(3)" in str(celery_site.outcome(one.result)[1])
        one.left("FAILURE", "failed")
    [after, _] = begin(celery_site)
    assert {one.started().pid for one in ran} == {after.started().pid}


def test_a_child_that_is_recycled_after_each_task(celery_site):
    celery_site.configure(lease=LEASE)
    celery_site.worker(concurrency=1, arguments=("--max-tasks-per-child=1",))
    ran = begin(celery_site)
    for one in ran:
        one.left("SUCCESS", "ready")
    assert len({one.started().pid for one in ran}) == len(ran)


@pytest.mark.quick
def test_a_retry_frees_the_lock_until_it_comes_back(celery_site):
    celery_site.configure(lease=LEASE)
    celery_site.worker(concurrency=1)
    for one in begin(celery_site, "retries 3600"):
        celery_site.wait_until(lambda one=one: one.state == "RETRY")
        one.free()
        other = celery_site.publish("locked_video", one.video.pk)
        assert celery_site.outcome(other) == ("SUCCESS", "returns")
        one.free()


@pytest.mark.parametrize("ended", ["revoked", "expired"])
def test_a_retry_that_never_begins_closes_its_row(celery_site, ended):
    """Its first try had begun the work, and has given the row back to it."""
    celery_site.configure(lease=LEASE)
    worker = celery_site.worker(concurrency=1)
    expires = {"expires": datetime.now(UTC) + timedelta(seconds=2)} if ended == "expired" else {}
    ran = begin(celery_site, "retries 6", **expires)
    for one in ran:
        celery_site.wait_until(lambda one=one: one.state == "RETRY")
        if ended == "revoked":
            revoke(celery_site, worker, one.result.id)
    for one in ran:
        one.left("REVOKED", "failed")
        assert one.told() == ["start", "raised"]


class TestThatNeverBegin:
    @pytest.mark.broker
    @pytest.mark.quick
    def test_revoked_in_the_queue(self, celery_site):
        celery_site.configure(lease=LEASE)
        worker = celery_site.worker(concurrency=1)
        gate = celery_site.gate()
        celery_site.publish("hold", "slot", until=gate)
        celery_site.started("slot")
        ran = begin(celery_site)
        for one in ran:
            revoke(celery_site, worker, one.result.id)
        gate.open()
        for one in ran:
            one.left("REVOKED", "uploading")
            assert one.told() == []

    def test_expired_in_the_queue(self, celery_site):
        """In Redis: RabbitMQ removes such a message by itself, and nobody hears of it."""
        celery_site.configure(lease=LEASE)
        expires = datetime.now(UTC) + timedelta(seconds=0.5)
        ran = begin(celery_site, expires=expires)
        celery_site.wait_until(lambda: datetime.now(UTC) > expires)
        assert [one.is_unique() for one in ran] == [True, False]
        celery_site.worker()
        for one in ran:
            one.left("REVOKED", "uploading")
            assert one.told() == []

    def test_another_one_can_be_published_after_that(self, celery_site):
        celery_site.configure(lease=LEASE)
        worker = celery_site.worker(concurrency=1)
        one = Begun(celery_site, "once_video", "returns", False, {"countdown": 2})
        revoke(celery_site, worker, one.result.id)
        one.left("REVOKED", "uploading")
        assert celery_site.outcome(celery_site.publish("once_video", one.video.pk)) == ("SUCCESS", "returns")
