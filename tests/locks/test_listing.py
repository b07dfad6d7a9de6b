"""A list of locks is made of what its reader looks at."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import pytest

from django_tasklock import TaskLock, list_all_task_locks
from django_tasklock.backends import get_backend
from django_tasklock.backends.redis import keys
from tests.support.public import setting

pytest_plugins = ["tests.support.redis_fixtures"]
pytestmark = pytest.mark.redis


def test_a_lock_in_a_list_is_read_when_it_is_looked_at(
    settings: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.TASKLOCK = setting("redis")
    read: list[bytes] = []

    def loads(value: bytes) -> Any:
        read.append(value)
        return json.loads(value)

    monkeypatch.setattr(keys, "json", type("Json", (), {"loads": staticmethod(loads)}))
    with TaskLock(f"{name}:a"), TaskLock(f"{name}:b"):
        found = list_all_task_locks()
        assert not read
        mine = {info.name: info for info in found}
        met = len(read)
        assert met == len(found), "a name for people is one of its fields"
        one = mine[f"{name}:a"]
        for other in (copy.copy(one), pickle.loads(pickle.dumps(one)), pickle.loads(pickle.dumps(found[0]))):
            assert other in found
        assert dict(one)["holder"] == one.holder
        assert len(read) == met
        with pytest.raises(AttributeError, match="nothing"):
            _ = one.nothing  # type: ignore[attr-defined]


def test_one_that_was_never_looked_at_can_be_sent_elsewhere(settings: Any, name: str) -> None:
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
