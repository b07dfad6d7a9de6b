"""Something of everything for the pages to show: locks, limiters, messages, an audit trail, sweeps, counts."""

from __future__ import annotations

import contextlib
import json
import secrets
import sqlite3
import time

from django_tasklock.backends.contract.rates import Pushback, Terms
from django_tasklock.rates.notation import parse_rates
from django_tasklock.types import AcquireRequest
from tests.browser.example import Example
from tests.support.sweeping import dead_holder

__all__ = ["LONG", "TAVILY", "VIDEO", "furnish", "queue"]

VIDEO = "video_processing_lock:1"
LONG = "a-lock-with-a-name-that-has-no-end:" + "andgoeson" * 18
TAVILY = Terms("tavily", parse_rates("3/h, 100/d"))
HOUR = 3_600_000_000

TABLES = """
import json, sys, time
from django.utils import timezone
from django_tasklock.backends.database.names import key_of
from django_tasklock.models import AuditEntry, ParkedMessage
from django_tasklock.operations.sweep import sweep
from django_tasklock.operations.values import Actor

long, now = sys.argv[1], int(time.time() * 1000)

def row(n, name, **more):
    known = {"mode": "queue", "state": "parked", "task": "videos.tasks.transcode", "task_id": f"t-{n}"}
    known |= {"message": json.dumps({"name": name}), "parked_at": now - 7_200_000 + n * 100, "changed_at": now - 5000}
    return ParkedMessage(key=key_of(name), name=name, number=n, **{**known, **more})

ParkedMessage.objects.bulk_create([
    row(1, "video:1"), row(2, "video:2", state="promoted"), row(3, "video:2"), row(4, long, mode="coalesce"),
    row(5, "video:3", state="dead", problem="NotRegistered('videos.tasks.gone')", attempts=8),
    row(6, "video:4", task="videos.tasks.a_task_with_a_long_name_" * 3), *(row(n, "video:1") for n in range(7, 70))])
AuditEntry.objects.bulk_create(
    AuditEntry(at=timezone.now(), actor="ann", action=act, key=key_of(name), name=name, reason=why, outcome="released")
    for act, name, why in [("release", "video:1", "the worker was unplugged"), ("ask", long, "a deploy"),
                           ("reset_limit", "tavily", "a new key"), ("discard", "video:9", "x" * 300)] * 30)
sweep(by=Actor("task django_tasklock.tasks.sweep_locks"), pause=0)
"""


def count(site: Example) -> None:
    """A day of a project that works, as its processes have counted it: more by day than by night."""
    hour = int(time.time() // 3600)
    rows = []
    for ago in range(24):
        number = 40 + 30 * (1 - abs(((hour - ago) % 24) - 13) // 12)
        for event, share in (("acquired", 5.0), ("waited", 0.5), ("conflict:skip", 0.3)):
            rows.append(((hour - ago) * 3600, event, int(number * share)))
    with contextlib.closing(sqlite3.connect(site.folder / "db.sqlite3", timeout=20)) as connection, connection:
        connection.executemany(
            "INSERT INTO tasklock_event_count (hour, event, kind, bucket, number, milliseconds)"
            " VALUES (?, ?, 'video:{id}', 0, ?, 0) ON CONFLICT (hour, event, kind, bucket) DO UPDATE SET"
            " number = excluded.number",
            rows,
        )


def furnish(site: Example) -> None:
    """Put it there."""
    count(site)
    site.python(TABLES, LONG)  # first: its sweep would put the rest right
    assert site.worker("claim", 1) == "holds"
    site.lock(LONG, seconds=100_000, lease=60, task="a.module.with.a.long.path.tasks.a_task_with_a_long_name" * 2)
    site.lock("video:1", seconds=3600, task_id="holds-1")
    site.lock("dead", seconds=3600, **json.loads(dead_holder()))
    site.lock("unending", task="")
    site.client.persist(site.key("unending"))
    site.lock("ends-soon", lease=5)
    site.lock("lapsed", seconds=0.05, lease=0.05)
    rates = site.store.rates
    for _ in range(5):
        rates.reserve(TAVILY, 1, HOUR * 2)
    rates.penalize(Terms("openai", parse_rates("60/m")), Pushback(HOUR), HOUR)
    for tenant in ("acme", ""):
        rates.reserve(Terms(f"tavily:tenant:{tenant}", parse_rates("2/m")), 1, 0)
    for _ in range(2):
        known = '{"host":"far-away","pid":4711,"task":"videos.tasks.transcode_it","task_id":"t-1","limit":3}'
        request = AcquireRequest("transcode", secrets.token_hex(16), 60_000, 600_000, known, limit=3)
        site.store.permits.acquire(request)


def queue(site: Example) -> None:
    """Two wait for the same lock: whoever waits looks again within seconds, or the queue forgets it."""
    for n in range(2):
        holder = {
            "host": "far-away",
            "pid": 12 + n,
            "boot": f"b{n}",
            "task": "videos.tasks.report",
            "task_id": f"w-{n}",
        }
        request = AcquireRequest("video:1", f"{n:032d}", 60_000, 60_000, json.dumps(holder, separators=(",", ":")))
        site.store.waiter(request).acquire()
