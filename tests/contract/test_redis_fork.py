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
from django_tasklock import TaskLock, acquire_task_lock, release_task_lock
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
                held=lock.held,
                heartbeat=heartbeat.alive or len(heartbeat),
                plain=release_task_lock(f"{name}:plain"),
            )
            busy("child")
            with TaskLock(f"{name}:child") as own:
                facts["own"] = own.held and len(heartbeat) == 1
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
children = [forked(fork) for fork in (os.fork, fork_in_c)]
deadline = lock.lease.deadline
while lock.lease.deadline == deadline:  # until the next renewal
    assert lock.held, "the parent's lock was lost"
    time.sleep(0.01)
parent = [lock.release() is Released.RELEASED, release_task_lock(f"{name}:plain")]
print(json.dumps([children, parent]))
"""


WAITERS = """
import json, os, sys, threading
import django
django.setup()
from django_tasklock.backends import get_backend
from django_tasklock.types import Grant, Released
from tests.support.processes import fork_in_c
from tests.support.stores import an_ask, eventually, granted

name = sys.argv[1]
asks = {who: [an_ask(f"{name}:{who}:{number}") for number in range(10)] for who in ("parent", "child")}
holds = {ask.name: an_ask(ask.name) for both in asks.values() for ask in both}

def wait(who):
    "Wait for one lock after the other. How many were handed over by a message, and not found when it asked again."
    woken = 0
    for ask in asks[who]:
        with get_backend().waiter(ask) as waiter:
            while not isinstance(waiter.acquire(), Grant):
                if waiter.wait(1.0) is not None:
                    woken += 1
                    break
        assert get_backend().release(ask.name, ask.token) is Released.RELEASED
    return woken

def hand_over(asks):
    for ask in asks:
        eventually(lambda: get_backend().waiters(ask.name).total == 1)
        assert get_backend().release(ask.name, holds[ask.name].token) is Released.RELEASED

for held in holds.values():
    granted(get_backend().acquire(held))
facts = {}
waiting = threading.Thread(target=lambda: facts.update(parent=wait("parent")))
waiting.start()
hand_over(asks["parent"][:5])  # it listens, and goes on to wait for the sixth
eventually(lambda: get_backend().waiters(asks["parent"][5].name).total == 1)
read, write = os.pipe()
child = fork_in_c()
if child == 0:
    try:
        os.write(write, json.dumps(wait("child")).encode())
    finally:
        os._exit(0)
os.close(write)
hand_over(asks["child"])
with os.fdopen(read, "rb") as pipe:
    facts["child"] = json.loads(pipe.read() or b"null")
os.waitpid(child, 0)
hand_over(asks["parent"][5:])
waiting.join()
print(json.dumps(facts))
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
            "held": False,
            "heartbeat": 0,
            "plain": False,
            "own": True,
            "parent_keeps_its_connection": True,
        }
    assert parent == [True, True]


@pytest.mark.slow
def test_a_child_waits_while_its_parent_does(name: str) -> None:
    """A slow machine may make a waiter ask again before it is told, but not each time."""
    woken = ran(WAITERS, name)
    assert woken["child"] > 0
    assert woken["parent"] > 0
