"""A long outage: what cannot have reached the store leaves nothing to clear up afterwards."""

from __future__ import annotations

import pytest

from django_tasklock import BackendUnavailable, TaskLock, acquire_task_lock
from django_tasklock.heartbeat import heartbeat
from tests.support.redis_server import free_port
from tests.support.twins import TWINS, call

pytest_plugins = ["tests.support.redis_fixtures"]
pytestmark = pytest.mark.redis


@TWINS
def test_refused_requests_are_not_remembered(configure, way: str) -> None:
    """Memory and the heartbeat's work are bounded, however many tasks go on without their lock."""
    configure(LOCATION=f"redis://127.0.0.1:{free_port()}/0", ON_UNAVAILABLE="run")
    before = len(heartbeat.errands.leftovers)
    for turn in range(50):
        with pytest.raises(BackendUnavailable) as caught:
            call(way, TaskLock(f"outage:{turn}", on_unavailable="raise"), "acquire")
        assert caught.value.doubt is False
        assert acquire_task_lock(f"outage:{turn}")  # the policy "run"
    assert len(heartbeat.errands.leftovers) <= before
