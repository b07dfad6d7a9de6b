"""A long outage: what cannot have reached the store leaves nothing to clear up afterwards."""

from __future__ import annotations

import math
import time

import pytest

from django_tasklock import BackendUnavailable, TaskLock, acquire_task_lock
from django_tasklock.locks.heartbeat import heartbeat
from django_tasklock.locks.lease import Lease
from django_tasklock.locks.reconcile import Reconciler
from django_tasklock.types import Grant, Released
from tests.support.redis_server import free_port
from tests.support.twins import TWINS, call

pytest_plugins = ["tests.support.redis_fixtures"]
pytestmark = pytest.mark.redis


@pytest.mark.slow
@TWINS
def test_refused_requests_are_not_remembered(configure, way: str) -> None:
    """Memory and the heartbeat's work are bounded, however many tasks go on without their lock."""
    configure(LOCATION=f"redis://127.0.0.1:{free_port()}/0", ON_UNAVAILABLE="run")
    before = len(heartbeat.reconciler.leftovers)
    for turn in range(50):
        with pytest.raises(BackendUnavailable) as caught:
            call(way, TaskLock(f"outage:{turn}", on_unavailable="raise"), "acquire")
        assert caught.value.doubt is False
        assert acquire_task_lock(f"outage:{turn}")  # the policy "run"
    assert len(heartbeat.reconciler.leftovers) <= before


def test_what_is_left_meanwhile_does_not_disturb_what_is_being_given_back() -> None:
    """Other threads add to it at any moment; here, in the middle of the look at what there is."""
    reconciler = Reconciler()
    released = []

    class Store:
        def __hash__(self) -> int:
            if len(reconciler.leftovers) < 3:
                reconciler.release_later(Lease(self, "late", None, None), 1000)  # type: ignore[arg-type]
            return 1

        def release(self, name: str, token: str) -> Released:
            released.append(name)
            return Released.RELEASED

        def close_idle(self) -> None: ...

    reconciler.release_later(Lease(Store(), "early", None, None), 1000)  # type: ignore[arg-type]
    for _ in range(3):
        reconciler.run(lambda lease: None, lambda lease, reason: None)
    assert released.count("early") == 1
    assert "late" in released


def test_a_lease_is_over_here_before_it_is_in_the_store() -> None:
    """Stores count whole milliseconds: from 0.9 ms to 150.9 ms is 149.1 ms to one that cuts the first short."""
    hold = Lease(None, "a", 150, None)  # type: ignore[arg-type]
    began = math.floor(time.monotonic()) - 1.0
    hold.granted(Grant(1, 150), began + 0.0009, 150)
    assert hold.deadline <= began + 0.150 + 1e-9
    assert hold.lost == "its timeout is over"
