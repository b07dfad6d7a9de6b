"""A pool of database connections and a fork: the child talks to the server on sockets of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.database_pool import needs_pool

pytestmark = [pytest.mark.database, pytest.mark.django_db(transaction=True)]

PARENT = """
import gc, json, os, sys
import django
from django.conf import settings
settings.DATABASES["default"]["OPTIONS"] = {"pool": {"min_size": 3, "max_size": 3, "timeout": 10}}
django.setup()
from django.db import connection, connections
from django_tasklock import Claim, StateGuard, release_connections
from tests.testapp.models import Video

def pid():
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return cursor.fetchone()[0]

def pids():
    "Those of all three: nobody gets one that is out."
    pool, found = connection.pool, set()
    out = [pool.getconn() for _ in range(3)]
    for one in out:
        found.add(one.info.backend_pid)
        assert one.execute("SELECT 1").fetchone() == (1,)
        pool.putconn(one)
    return found

pid()
release_connections()
connection.pool.wait(30)
before = pids()
inherited = [one.fileno() for one in connection.pool._pool]
read, write = os.pipe()
child = os.fork()
if child == 0:
    try:
        from django_tasklock.db.pools import figures  # not before the fork: a worker does not either
        facts = {"empty": figures("default").checked_in == 0}
        own = pid()
        facts["own"] = own not in before
        facts["sockets"] = [os.readlink(f"/proc/self/fd/{fd}").startswith("socket:") for fd in inherited]
        guard = StateGuard(claim_from=["uploading"], claim_as="processing", done="ready")
        claim = Claim.take(Video, int(sys.argv[1]), guard, "child")
        claim.finish()
        connections.close_all()
        connection.close_pool()  # as Celery does in a new pool process
        gc.collect()
        os.write(write, json.dumps(facts).encode())
    finally:
        os._exit(0)
os.close(write)
with os.fdopen(read, "rb") as pipe:
    facts = json.loads(pipe.read() or b"null")
os.waitpid(child, 0)
facts["parent"] = pids() == before
connections.close_all()
connection.close_pool()
print(json.dumps(facts))
"""


def test_fork() -> None:
    needs_pool()
    from tests.testapp.models import Video

    video = Video.objects.create()
    run = subprocess.run(
        [sys.executable, "-c", PARENT, str(video.pk)],
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings", "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    facts = json.loads(run.stdout)
    assert facts.pop("sockets") in ([False] * 3, [])
    assert facts == {"empty": True, "own": True, "parent": True}
    video.refresh_from_db()
    assert video.status == "ready"
