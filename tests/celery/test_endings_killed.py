"""Every way in which a running task is ended from outside: what is left, and how soon its key is free.

The lease is a minute where the key must not wait for it. Each row runs as a ``OnceTask`` and
decorated, in a real worker.
"""

from __future__ import annotations

import time

import pytest

from tests.support.celery_site.site import Gate
from tests.support.endings import KINDS, LEASE, PROMPT, Begun, begin, revoke
from tests.testapp.models import Track, Video

pytest_plugins = ["tests.support.celery_site.fixtures"]
SITE_TASKS = ["tests.support.celery_site.ending_tasks"]

LATE = {"task_acks_late": True}
LOST = {"task_acks_late": True, "task_reject_on_worker_lost": True}
SHORT = 2.0  # seconds of lease where it is the lease that frees
LATER = SHORT + 10.0


def sitting(site, worker):
    """One of each kind that runs, as the main process knows."""
    ran = begin(site, sits=True)
    for one in ran:
        one.started()
    site.accepted(worker, len(ran))
    return ran


def apart(site, how="returns", **options):
    """One of each kind that sits, and its worker: a pool of which several were killed may stand still for a while."""
    workers = [site.start(concurrency=2, queues=(kind,)) for kind in KINDS]
    for worker in workers:
        worker.wait_until_ready()
    return [
        (Begun(site, kind, how, True, {**options, "queue": site.queue(kind)}), worker)
        for kind, worker in zip(KINDS, workers, strict=True)
    ]


def killed(site, worker, one):
    worker.kill_one(one.started().pid)


def revoked(name):
    return lambda site, worker, one: revoke(site, worker, one.result.id, terminate=True, signal=name)


FROM_OUTSIDE = {
    # how it is ended: the option or who does it, its body, its result, the row, what its body did
    "soft time limit": ({"soft_time_limit": 0.5}, "sits", "FAILURE", "failed", "start raised"),
    # Celery kills 0.1 s after it has asked to end: that may be enough to give the row back or not
    "hard time limit": ({"time_limit": 0.5}, "sits", "FAILURE", "failed", None),
    "hard time limit, deaf": ({"time_limit": 0.5}, "deaf", "FAILURE", "failed", "start"),
    "SIGKILL of the child": (killed, "sits", "FAILURE", "failed", "start"),
    "revoke, TERM": (revoked("TERM"), "sits", "REVOKED", "failed", "start raised"),
    "revoke, USR1": (revoked("USR1"), "sits", "REVOKED FAILURE", "failed", "start raised"),
    "revoke, KILL": (revoked("KILL"), "sits", "REVOKED", "failed", "start"),
}
"""Nothing runs them again: so the row is failed, by the body itself or by the main process."""
ALSO_LATE = ("hard time limit", "hard time limit, deaf", "SIGKILL of the child", "revoke, TERM")


@pytest.mark.broker
@pytest.mark.parametrize(
    ("ended", "late"), [*((ended, False) for ended in FROM_OUTSIDE), *((ended, True) for ended in ALSO_LATE)]
)
def test_a_task_that_is_ended(celery_site, ended, late):
    celery_site.configure(lease=LEASE, task_acks_late=late)
    by, how, states, row, body = FROM_OUTSIDE[ended]
    ran = apart(celery_site, how, **(by if isinstance(by, dict) else {}))
    for one, worker in ran:
        one.started()
        if callable(by):
            by(celery_site, worker, one)
    for one, _ in ran:
        one.left(states, row)
        assert body in (None, " ".join(one.told()))


def test_a_hard_time_limit_frees_nothing_before_the_child_is_dead(celery_site):
    """Gold standard 8.17: it lives although everybody was told of its end."""
    celery_site.configure(lease=LEASE, tasks=("tests.support.celery_site.slow_kill",))
    kill = Gate(celery_site.folder / "kill")
    ran = [one for one, _ in apart(celery_site, "deaf", time_limit=1)]
    celery_site.wait_until(lambda: celery_site.events("killing"))
    [first] = [one for one in ran if one.started().pid == celery_site.events("killing")[0].pid]
    celery_site.wait_until(lambda: first.state == "FAILURE")
    told = len(celery_site.events("lives", first.video.pk))
    celery_site.wait_until(lambda: len(celery_site.events("lives", first.video.pk)) > told + 50)
    info = celery_site.lock(first.name)
    assert info is not None
    assert info.task_id == first.result.id
    assert first.row() == "processing"
    kill.open()
    for one in ran:
        one.left("FAILURE", "failed")


@pytest.mark.broker
@pytest.mark.quick
def test_lost_with_its_child_and_sent_again(celery_site):
    """Gold standard 8.17: the first is known to be dead, so the second neither skips nor waits for the lease."""
    celery_site.configure(lease=LEASE, **LOST)
    for one, worker in apart(celery_site):
        worker.kill_one(one.started().pid)
        died = time.monotonic()
        assert one.started(2).time - died < PROMPT
        assert one.is_unique() is (one.kind == "once_video")
        one.let_go()
        one.left("SUCCESS", "ready")
        assert one.told() == ["start", "start", "end"]


@pytest.mark.parametrize("how", ["sits", "deaf"])
def test_the_row_of_a_helper_is_closed_with_the_message(celery_site, how):
    """Its task has no lock at all. The one who is deaf has no time to leave a mark in it."""
    celery_site.configure(lease=LEASE)
    celery_site.worker()
    one = Begun(celery_site, "helped", how, True, {"time_limit": 0.5})
    celery_site.wait_until(lambda: one.row() == "failed")
    assert one.state == "FAILURE"


def test_a_row_that_is_known_by_its_public_id_is_closed_with_the_message(celery_site):
    celery_site.configure(lease=LEASE)
    celery_site.worker()
    track = Track.objects.create()
    celery_site.publish("once_track", str(track.uid), "sits", celery_site.gate(), options={"time_limit": 0.5})

    def is_closed():
        track.refresh_from_db()
        return (track.status, track.lock_token) == ("failed", "")

    celery_site.wait_until(is_closed)


@pytest.mark.parametrize("kind", [*KINDS, "helped"])
def test_a_row_of_which_all_workers_die_is_failed(celery_site, kind):
    """Set back, it has all its starts again."""
    celery_site.configure(lease=LEASE, **LOST)
    celery_site.worker()
    one = Begun(celery_site, kind, "dies", False, {})
    for lives in (1, 2):
        celery_site.wait_until(lambda: "CrashLoop" in repr(celery_site.result(one.result).result))
        one.left("FAILURE", "failed")
        assert one.told() == ["start"] * 2 * lives
        one.video.status = "uploading"
        one.video.save(update_fields=["status"])
        one.result = celery_site.publish(kind, one.video.pk, "dies")


def test_another_message_claims_the_row_before_it_is_closed(celery_site):
    """It is closed no more: whoever claims it later has written another token."""
    celery_site.configure(lease=LEASE)
    worker = celery_site.worker(concurrency=2)
    one = Begun(celery_site, "locked_video", "sits", True, {})
    one.started()
    Video.objects.filter(pk=one.video.pk).update(lock_token="another's")
    worker.kill_one(one.started().pid)
    celery_site.wait_until(lambda: one.state == "FAILURE")
    one.free()
    assert one.row() == "processing"


def test_timed_out_and_sent_again(celery_site):
    """Its ends are counted, although Celery tells of each as if it were the last: it is not killed without end."""
    celery_site.configure(lease=LEASE, task_acks_on_failure_or_timeout=False, **LATE)
    celery_site.worker(concurrency=1)
    one = Begun(celery_site, "locked_video", "deaf", True, {"time_limit": 0.5})
    one.started(2)
    celery_site.wait_until(lambda: "CrashLoop" in repr(celery_site.result(one.result).result))
    one.left("FAILURE", "failed")
    assert one.told() == ["start"] * 2


class TestTheWholeWorkerIsKilled:
    def test_the_lease_frees(self, celery_site):
        celery_site.configure(lease=SHORT)
        worker = celery_site.worker(concurrency=2)
        ran = begin(celery_site, sits=True)
        for one in ran:
            one.started()
        # What its publisher has said last, after the start if it was slow, the first renewal has taken back.
        celery_site.wait_until(lambda: ran[0].unique_for() <= SHORT)
        worker.kill()
        for one in ran:
            assert celery_site.lock(one.name) is not None
        for one in ran:
            one.left("PENDING", "processing", LATER)

    @pytest.mark.broker
    @pytest.mark.quick
    def test_what_comes_back_is_done(self, celery_site):
        celery_site.configure(lease=LEASE, visibility_timeout=1, **LATE)
        worker = celery_site.worker(concurrency=2)
        ran = begin(celery_site, sits=True)
        for one in ran:
            one.started()
        worker.kill()
        celery_site.worker(concurrency=2)
        for one in ran:
            one.started(2)
            one.let_go()
            one.left("SUCCESS", "ready")
            assert one.told() == ["start", "start", "end"]


class TestShutdown:
    def test_warm_waits_for_the_end(self, celery_site):
        celery_site.configure(lease=LEASE, **LATE)
        worker = celery_site.worker(concurrency=2)
        ran = sitting(celery_site, worker)
        worker.terminate()
        celery_site.wait_until(lambda: "Warm shutdown" in worker.log())
        for one in ran:
            one.let_go()
        assert worker.ended() == 0
        for one in ran:
            one.left("SUCCESS", "ready")

    def test_cold_gives_everything_back(self, celery_site):
        celery_site.configure(lease=LEASE)
        worker = celery_site.worker(concurrency=2)
        ran = sitting(celery_site, worker)
        worker.quit()
        worker.ended()
        for one in ran:
            one.left("RETRY", "uploading")
            assert one.told() == ["start", "raised"]

    @pytest.mark.broker
    @pytest.mark.parametrize("soft", [0, 1], ids=["cold", "soft"])
    def test_cold_brings_back_what_was_not_acknowledged(self, celery_site, soft):
        celery_site.configure(lease=LEASE, worker_soft_shutdown_timeout=soft, **LATE)
        worker = celery_site.worker(concurrency=2)
        ran = sitting(celery_site, worker)
        worker.quit()
        worker.ended()
        celery_site.worker(concurrency=2)
        for one in ran:
            one.started(2)
            one.let_go()
            one.left("SUCCESS", "ready")
            assert one.told() == ["start", "raised", "start", "end"]

    def test_soft_waits_for_what_ends_in_time(self, celery_site):
        celery_site.configure(lease=LEASE, worker_soft_shutdown_timeout=3)
        worker = celery_site.worker(concurrency=2)
        ran = sitting(celery_site, worker)
        worker.quit()
        celery_site.wait_until(lambda: "Soft" in worker.log())
        for one in ran:
            one.let_go()
        for one in ran:
            one.left("SUCCESS", "ready")
        worker.ended()
        assert [one.told() for one in ran] == [["start", "end"]] * 2
