"""A forked child talks to Redis on connections of its own, is woken by a subscription of its own, and neither renews
nor releases what its parent holds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest_plugins = ["tests.support.redis_fixtures"]
pytestmark = pytest.mark.redis

PARENT = """
import gc, json, os, sys, time
import django
django.setup()
from django_tasklock import TaskLock, TaskLockError, acquire_task_lock, release_task_lock
from django_tasklock.backends import get_backend
from django_tasklock.locks.heartbeat import heartbeat
from django_tasklock.types import Released
from tests.support.processes import fork_in_c
from tests.support.stores import an_ask, granted

name = sys.argv[1]

def end():
    backend = get_backend()
    backend.get(name)
    connection = backend.client.take()
    backend.client.keep(connection)
    return connection._sock.getsockname()

def busy(kind):
    "Verbs whose replies would be wrong if somebody else read them, or theirs were read here."
    for index in range(200):
        ask = an_ask(f"{name}:{kind}:{index}")
        granted(get_backend().acquire(ask))
        assert get_backend().get(ask.name).token == ask.token
        assert get_backend().release(ask.name, ask.token) is Released.RELEASED

def woken(kind):
    "Whether who waits is told by a message. A busy machine may make it ask again before that, but not each time."
    for number in range(10):
        held, ask = an_ask(f"{name}:{kind}:{number}"), an_ask(f"{name}:{kind}:{number}")
        granted(get_backend().acquire(held))
        with get_backend().waiter(ask) as waiter:
            waiter.acquire()
            get_backend().release(held.name, held.token)
            told = waiter.wait(30)
            granted(told or waiter.acquire())
        get_backend().release(ask.name, ask.token)
        if told is not None:
            return True
    return False

def until_renewed(lock):
    deadline = lock.lease.deadline
    while lock.lease.deadline == deadline:
        assert lock.held, "the lock was lost"
        time.sleep(0.01)

def refused(release):
    try:
        release()
    except TaskLockError as error:
        return "not held" in str(error)

def forked(fork):
    "What a child that was forked so tells of itself, while its parent is busy."
    parents, before = get_backend(), end()
    read, write = os.pipe()
    child = fork()
    if child == 0:
        try:
            facts = dict(
                another_backend=get_backend() is not parents,
                another_connection=end() != before,
                held=(lock.held, lock.taken, lock.lost, refused(lock.release)),
                heartbeat=heartbeat.alive or len(heartbeat),
                plain=release_task_lock(f"{name}:plain"),
            )
            busy("child")
            with TaskLock(f"{name}:child", lease=4) as own:
                until_renewed(own)
                facts["own"] = own.held and len(heartbeat) == 1 and not TaskLock(name).acquire()
            facts["woken"] = woken("child")
            del parents
            gc.collect()  # what is collected here must not close the parent's connections
            os.write(write, json.dumps(facts).encode())
        finally:
            os._exit(0)
    os.close(write)
    busy("parent")
    with os.fdopen(read, "rb") as pipe:
        facts = json.loads(pipe.read() or b"null")
    os.waitpid(child, 0)
    return {**facts, "parent_keeps_its_connection": end() == before}

lock = TaskLock(name, lease=4)
lock.acquire()
assert acquire_task_lock(f"{name}:plain", 60)
assert heartbeat.alive
assert woken("parent")  # and so it listens when it forks
children = [forked(fork) for fork in (os.fork, fork_in_c)]
until_renewed(lock)
parent = [woken("parent again"), lock.release() is Released.RELEASED, release_task_lock(f"{name}:plain")]
print(json.dumps([children, parent]))
"""


def ran(code: str, name: str) -> Any:
    """What this program tells of itself."""
    run = subprocess.run(
        [sys.executable, "-c", code, name],
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings", "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def test_a_child_of_python_and_one_of_uwsgi(name: str) -> None:
    children, parent = ran(PARENT, name)
    for child in children:
        assert child == {
            "another_backend": True,
            "another_connection": True,
            "held": [False, False, False, True],
            "heartbeat": 0,
            "plain": False,
            "own": True,
            "woken": True,
            "parent_keeps_its_connection": True,
        }
    assert parent == [True, True, True]
