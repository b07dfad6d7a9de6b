"""A worker replaces a child that was killed while its threads see to what that left behind."""

from __future__ import annotations

import subprocess
import sys

from tests.support.celery_site.forked import ROOT


def test_a_fork_waits_for_what_a_thread_is_doing():
    """Else the child finds locked what the thread had locked: on RabbitMQ it never ran its first task."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _FORKS], cwd=ROOT, timeout=60, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "0"]


_FORKS = """
import os, threading, time
import django
django.setup()
from django_tasklock.db.forks import no_fork

anything, inside = threading.Lock(), threading.Event()

def settle():
    with no_fork(), anything:
        inside.set()
        time.sleep(0.3)

thread = threading.Thread(target=settle)
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
