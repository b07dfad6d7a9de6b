"""The pools beside prefork: all tasks of such a worker share one process, and each keeps its lock until it ends."""

from __future__ import annotations

import pytest

from tests.support.celery_site.journal import most_at_once
from tests.support.endings import KINDS, LEASE, Begun, begin, revoke
from tests.support.pools import OTHERS, needs

pytest_plugins = ["tests.support.celery_site.fixtures"]
SITE_TASKS = ["tests.support.celery_site.ending_tasks"]


@pytest.fixture(params=OTHERS)
def pool(request):
    needs(request.param)
    return request.param


def test_a_warm_shutdown_waits_for_a_task_that_is_longer_than_its_lease(celery_site, pool):
    """It keeps the lock: the heartbeat renews, which with gevent is a greenlet."""
    celery_site.configure(lease=3)
    server = celery_site.worker(pool=pool)
    one = Begun(celery_site, "once_video", "sits", True, {})
    one.started()
    server.terminate()
    celery_site.wait_until(lambda: "Warm shutdown" in server.log())
    one.renewed(5)  # a third of the lease is between them
    assert celery_site.lock(one.name).task_id == one.result.id
    one.let_go()
    one.left("SUCCESS", "ready")
    assert server.ended() == 0


class TestGevent:
    @pytest.fixture(autouse=True)
    def _gevent(self):
        needs("gevent")

    def test_waiting_for_a_lock_does_not_block_other_greenlets(self, celery_site):
        celery_site.configure(lease=3)
        celery_site.worker(pool="gevent", concurrency=4)
        gate = celery_site.gate()
        first = celery_site.publish("waiting_hold", "a", until=gate)
        celery_site.started("a")
        waiters = [celery_site.publish("waiting_hold", "a") for _ in range(2)]
        celery_site.wait_until(lambda: celery_site.locks.zcard("task_lock#queue:hold:a") == len(waiters))
        for number in range(5):
            assert celery_site.outcome(celery_site.publish("hold", number))[0] == "SUCCESS"
        assert len(celery_site.events("start", "a")) == 1
        gate.open()
        for result in (first, *waiters):
            assert celery_site.outcome(result)[0] == "SUCCESS"
        assert most_at_once(celery_site.events(key="a")) == 1

    def test_a_hard_time_limit_and_a_revocation_while_it_runs(self, celery_site):
        celery_site.configure(lease=LEASE)
        server = celery_site.worker(pool="gevent", concurrency=2)
        for kind in KINDS:
            limited = Begun(celery_site, kind, "sits", True, {"time_limit": 0.5})
            limited.left("FAILURE", "failed")
            revoked = Begun(celery_site, kind, "sits", True, {})
            revoked.started()
            revoke(celery_site, server, revoked.result.id, terminate=True)
            revoked.left("REVOKED", "failed")
            assert limited.told() == revoked.told() == ["start", "raised"]

    def test_a_late_heartbeat_is_logged(self, celery_site):
        """Gold standard 8.11: and the lock is not lost, if the lease is longer."""
        celery_site.configure(lease=12)  # late is who is so by a third of it
        server = celery_site.worker(pool="gevent")
        one = Begun(
            celery_site, "once_video", "hogs 9", True, {}
        )  # and sits: the heartbeat gets its turn before the end
        lines = celery_site.wait_until(lambda: [line for line in server.log().splitlines() if "heartbeat: " in line])
        assert len(lines) == 1
        assert "s late for " in lines[0]
        one.let_go()
        one.left("SUCCESS", "ready")
        assert f"lock {one.name!r} was no longer ours" not in server.log()

    @pytest.mark.broker
    def test_cold_shutdown_brings_back_what_it_interrupted(self, celery_site):
        """Celery's pool reports a killed greenlet as a success."""
        celery_site.configure(lease=LEASE, visibility_timeout=3, task_acks_late=True, task_reject_on_worker_lost=True)
        server = celery_site.worker(pool="gevent", concurrency=2)
        ran = begin(celery_site, sits=True)
        for one in ran:
            one.started()
        server.quit()
        server.ended()
        celery_site.worker(pool="gevent", concurrency=2)
        for one in ran:
            one.started(2)
            one.let_go()
            one.left("SUCCESS", "ready")
            assert one.told() == ["start", "raised", "start", "end"]
