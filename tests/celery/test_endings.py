"""Every way in which a body ends by itself, and messages that never begin: what they leave behind.

The lease is a minute: what is free before that did not wait for it. Each row runs as a
``OnceTask`` and decorated, in a real worker.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tests.support.endings import LEASE, Begun, begin, revoke

pytest_plugins = ["tests.support.celery_site.fixtures"]
SITE_TASKS = ["tests.support.celery_site.ending_tasks"]

EARLY: dict[str, bool] = {}
LATE = {"task_acks_late": True}
NONE = "PENDING FAILURE"  # a rejected message has no result; in newer Celery it has failed

BY_ITSELF = [
    # how it ends        its result  the row      what its body did
    ("returns", EARLY, "SUCCESS", "ready", "start end"),
    ("returns", LATE, "SUCCESS", "ready", "start end"),
    ("raises", EARLY, "FAILURE", "failed", "start raised"),
    ("ignores", EARLY, "PENDING", "failed", "start raised"),
    ("rejects", LATE, NONE, "failed", "start raised"),
    ("requeues", EARLY, "PENDING", "uploading", "start raised"),  # it was acknowledged: nothing comes back
    ("requeues", LATE, "SUCCESS", "ready", "start raised start end"),
    ("retries", EARLY, "SUCCESS", "ready", "start raised start end"),
    ("autoretries", EARLY, "SUCCESS", "ready", "start raised start end"),
    ("exits", EARLY, "FAILURE", "uploading", "start raised"),
    ("exits", LATE, "FAILURE", "uploading", "start raised"),
]


@pytest.mark.broker
@pytest.mark.parametrize(
    ("how", "acks", "states", "row", "body"),
    BY_ITSELF,
    ids=[f"{row[0]}-{'late' if row[1] else 'early'}" for row in BY_ITSELF],
)
def test_a_body_that_ends_by_itself(celery_site, how, acks, states, row, body):
    celery_site.configure(lease=LEASE, **acks)
    celery_site.worker(concurrency=2)
    for one in begin(celery_site, how):
        celery_site.wait_until(lambda one=one: one.told() == body.split())
        one.left(states, row)
        assert one.told() == body.split()


def test_a_child_that_is_recycled_after_each_task(celery_site):
    celery_site.configure(lease=LEASE)
    celery_site.worker(concurrency=1, arguments=("--max-tasks-per-child=1",))
    ran = begin(celery_site)
    for one in ran:
        one.left("SUCCESS", "ready")
    assert len({one.started().pid for one in ran}) == len(ran)


class TestRetry:
    @pytest.mark.quick
    def test_frees_the_lock_until_it_comes_back(self, celery_site):
        celery_site.configure(lease=LEASE)
        celery_site.worker(concurrency=1)
        for one in begin(celery_site, "retries 3600"):
            celery_site.wait_until(lambda one=one: one.state == "RETRY")
            one.free()
            other = celery_site.publish("locked_video", one.video.pk)
            assert celery_site.outcome(other) == ("SUCCESS", "returns")
            one.free()


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
        again = celery_site.publish("once_video", one.video.pk)
        assert again.id == one.result.id  # it is not known to be revoked before it is due
        one.left("REVOKED", "uploading")
        assert celery_site.outcome(celery_site.publish("once_video", one.video.pk)) == ("SUCCESS", "returns")
