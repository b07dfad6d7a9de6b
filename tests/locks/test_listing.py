"""What a list says of a lock in Redis."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from django_tasklock import TaskLock, list_all_task_locks
from django_tasklock.backends import get_backend
from tests.support.public import setting

pytest_plugins = ["tests.support.redis_fixtures"]
pytestmark = pytest.mark.redis


def test_it_can_be_sent_elsewhere(settings: Any, name: str) -> None:
    settings.TASKLOCK = setting("redis")
    with TaskLock(name) as lock:
        (info,) = [info for info in list_all_task_locks() if pickle.loads(pickle.dumps(info)).name == name]
        assert info.fence == lock.fence


def test_the_request_of_an_operator_can_be_the_first_field_that_is_read(settings: Any, name: str) -> None:
    settings.TASKLOCK = setting("redis")
    with TaskLock(name) as lock:
        assert get_backend().ask_release(name, lock.token)
        found = get_backend().get(name)
        assert found is not None
        assert found.asked > 0
