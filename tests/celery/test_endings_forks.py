"""A worker replaces a child that was killed while its threads see to what that left behind."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.celery_site.forked import ROOT


@pytest.mark.parametrize("works", ["settle", "clean_up"])
def test_a_fork_waits_for_what_a_thread_is_doing(works):
    """Else the child finds locked what the thread had locked: on RabbitMQ it never ran its first task.

    That was SQLite's own mutex, when the thread closed its connection at the end.
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", f"{_FORKS}\nfork_during({works})"],
        cwd=ROOT, timeout=60, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["False", "0"]


_FORKS = """
import os, threading, time
from types import SimpleNamespace
import django
django.setup()
from django_tasklock.celery.delivery import cleanup
from django_tasklock.db.forks import no_fork

anything, inside = threading.Lock(), threading.Event()

def work():
    with anything:
        inside.set()
        time.sleep(0.3)

def settle():
    with no_fork():
        work()

def clean_up():
    cleanup._await_end = lambda *what: (None, False)
    cleanup.release_connections = work
    task = SimpleNamespace(name="a.task")
    cleanup._clean_up(cleanup.Ended(task, "id", {"key": "a lock"}, (), {}, None, begun=True))

def fork_during(works):
    if not os.fork():  # the first fork imports what the others have
        os._exit(0)
    os.wait()
    thread = threading.Thread(target=works)
    thread.start()
    inside.wait()
    child = os.fork()
    if not child:
        with no_fork():
            print(anything.locked(), flush=True)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    thread.join()
"""
