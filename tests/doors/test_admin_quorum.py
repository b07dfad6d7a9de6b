"""A lock that a majority of instances has granted, as operators see it."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import redis
from django.test import Client

from django_tasklock import TaskLock, operations
from django_tasklock.conf import QUORUM
from tests.support import quorum
from tests.support.admin_pages import LIST, page_of, words
from tests.support.stores import eventually

pytest_plugins = ["tests.support.redis_fixtures", "tests.support.admin_fixtures"]
pytestmark = [pytest.mark.redis, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def lock(settings: Any, admin_settings: None) -> TaskLock:
    """One that is held, on three instances."""
    settings.TASKLOCK = {"BACKEND": QUORUM, "LOCATION": [server.url for server in quorum.servers(3)]}
    quorum.clear(3)
    lock = TaskLock("video:42")

    def held_by_all() -> bool:
        """One that was slow to answer has not granted it."""
        assert lock.acquire()
        found = operations.get_lock("video:42").lock
        return (found is not None and found.instances == 3) or not lock.release()

    eventually(held_by_all)
    yield lock
    lock.release()


def test_its_page_says_how_many_instances_have_it(lock: TaskLock, operator: Client) -> None:
    """Each time one that is slow to answer is left out, so it is looked at again."""

    eventually(lambda: "video:42" in operator.get(LIST).text)
    eventually(lambda: "Instances that have it 3" in words(operator.get(page_of("video:42")).text))
    with redis.Redis.from_url(quorum.servers(3)[1].url) as client:
        client.delete("task_lock:video:42")
    eventually(lambda: "Instances that have it 2" in words(operator.get(page_of("video:42")).text))


def test_a_sweep_goes_over_all_of_them(lock: TaskLock) -> None:
    """What lost its expiry is given one, on each: on a majority, and on one alone, whose clock need not be ahead."""
    servers = [redis.Redis.from_url(server.url) for server in quorum.servers(3)]

    def swept(lost: list[redis.Redis]) -> bool:
        """One that was slow to answer is left as it is."""
        for client in lost:
            client.persist("task_lock:video:42")
        operations.sweep(by=operations.Actor("a test"), pause=0)
        return all(client.pttl("task_lock:video:42") > 0 for client in servers)

    for lost in (servers[:2], servers[:1], servers[1:2], servers[2:]):
        eventually(partial(swept, lost))
    for client in servers:
        client.close()
