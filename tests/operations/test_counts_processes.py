"""Counts over processes, some of them killed, beside what each of them has written down itself: the same, exactly."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from django_tasklock import counts
from django_tasklock.backends import get_backend
from django_tasklock.operations import sweep
from tests.support.counted import written
from tests.support.public import PROJECT, in_store
from tests.support.stores import eventually

KIND = "story:{id}"

# Each event is one line, written after it has happened; whoever is to be killed has written its last one, and its
# counts, before.
CHILD = """
import os, random, sys, time
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
import django; django.setup()
from django_tasklock import TaskLock, counts
me, turns, dies = int(sys.argv[1]), int(sys.argv[3]), sys.argv[4] == "dies"
log = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
def tell(event): os.write(log, (event + "\\n").encode())
random.seed(me)
for turn in range(turns):
    waits = random.random() < 0.3
    lock = TaskLock(f"story:{random.randrange(3)}", kind="story:{id}")
    if not lock.acquire(blocking_timeout=30 if waits else None):
        tell("conflict:timeout" if waits else "conflict:skip")
        continue
    tell("granted")
    time.sleep(random.uniform(0, 0.004))
    if lock.release():
        tell("released")
if dies:
    lock = TaskLock(f"dead:{me}", kind="story:{id}", lease=0.3, timeout=0.3)
    assert lock.acquire()
    tell("granted")
    assert counts.flush()
    tell("dying")
    time.sleep(60)
"""


@pytest.fixture(params=[pytest.param("redis", marks=pytest.mark.redis)])
def store(request: Any, settings: Any) -> Any:
    yield from in_store(request.param, settings)


def run(log: Path, turns: int, dying: int, others: int) -> Counter[str]:
    """Let children take locks, kill some of them as they hold one; what they have written down."""
    children = []
    for number in range(dying + others):
        dies = "dies" if number < dying else "lives"
        command = [sys.executable, "-c", CHILD, str(number), str(log), str(turns), dies]
        children.append(subprocess.Popen(command, cwd=PROJECT))
    try:
        for child in children[dying:]:
            assert child.wait(120) == 0
        eventually(lambda: log.read_text().split().count("dying") == dying, 120)
    finally:
        for child in children:
            child.kill()
            child.wait()
    eventually(lambda: get_backend().counts().live == 0)
    sweep(pause=0)
    assert counts.flush()
    return Counter(log.read_text().split())


def story(tmp_path: Path, turns: int, dying: int, others: int) -> None:
    told = run(tmp_path / "log", turns, dying, others)
    found = written(KIND)
    granted = found.pop("acquired") + found.pop("waited", 0)
    assert told["granted"] == told["released"] + dying
    assert {"granted": granted, "dying": dying, **found} == told
    assert written("").get("expired", 0) == dying


@pytest.mark.django_db(transaction=True)
class TestStory:
    @pytest.mark.slow
    def test_what_each_has_written_down(self, store: str, tmp_path: Path) -> None:
        story(tmp_path, 60, 2, 2)
