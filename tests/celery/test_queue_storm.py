"""Workers that are killed all the time, and a lock store that forgets everything: nothing is lost, nothing run twice.

``TASKLOCK_TEST_STORM=60``: seconds of killing, one worker each second; 6 by default, so that a test run stays short.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter

import pytest
import redis
from django.db import connection

from django_tasklock.models import ParkedMessage
from tests.support.celery_site import queue_tasks
from tests.testapp.models import Note, Video

pytest_plugins = ["tests.support.celery_site.fixtures"]
SITE_TASKS = ["tests.support.celery_site.queue_tasks"]

SECONDS = float(os.environ.get("TASKLOCK_TEST_STORM", "6"))
MESSAGES, OTHERS = 200, 50
WORKERS = 2

# The table itself says how often a row was closed, whatever the journal of a process that was killed may lack.
TRIGGER = """
CREATE TRIGGER closed AFTER UPDATE OF status ON testapp_video WHEN NEW.status = 'ready'
BEGIN INSERT INTO testapp_note (video_id, text) VALUES (NEW.id, NEW.lock_epoch || ' ' || NEW.lock_token); END
"""


@pytest.fixture
def closings(transactional_db):
    """How often each row was closed."""
    assert connection.vendor == "sqlite", "the trigger is SQLite's; this test is not repeated on other databases"
    with connection.cursor() as cursor:
        cursor.execute(TRIGGER)
    yield lambda: Counter(Note.objects.values_list("video_id", flat=True))
    with connection.cursor() as cursor:
        cursor.execute("DROP TRIGGER closed")


class Storm:
    """250 messages, 200 of them in one line, each with a row of its own; whoever works at them is killed."""

    def __init__(self, site):
        self.site = site
        self.workers = [site.worker(concurrency=2) for _ in range(WORKERS)]
        self.videos = [Video.objects.create() for _ in range(MESSAGES + OTHERS)]
        self.todo = [(video, "line") for video in self.videos[:MESSAGES]]
        self.todo += [(video, f"other-{video.pk}") for video in self.videos[MESSAGES:]]
        random.shuffle(self.todo)
        self.sent = {}
        self.killed = 0

    def publish(self, video, line, **options):
        length = SECONDS / 250
        result = self.site.publish("storm", line, video.pk, seconds=length, options=options)
        self.sent[result.id] = (video, line)

    def rage(self):
        """Kill one a second; publish during the first half of it; flush the lock store in the middle."""
        began, flushed = time.monotonic(), False
        while (passed := time.monotonic() - began) < SECONDS:
            due = began + self.killed + 1
            while self.todo and time.monotonic() < due:
                self.publish(*self.todo.pop())
                time.sleep(SECONDS / 2 / (MESSAGES + OTHERS))
            time.sleep(max(0.0, due - time.monotonic()))
            number = random.randrange(WORKERS)
            self.workers[number].kill()
            self.workers[number] = self.site.start(concurrency=2)
            self.killed += 1
            if not flushed and passed > SECONDS / 2:
                self.site.locks.flushall()
                flushed = True
        while self.todo:
            self.publish(*self.todo.pop())

    def undone(self):
        return [one for one in self.sent if self.site.result(one).state != "SUCCESS"]

    def at_rest(self):
        """Whether nothing is under way any more, whatever became of it."""
        if self.site.is_amqp:
            return False
        with redis.Redis.from_url(self.site.configuration.broker) as broker:
            return not (self.site.waiting() or broker.hlen("unacked") or ParkedMessage.objects.exists())

    def finish(self):
        """Wait for what is left. Returns what the broker's client has lost: on Redis, what is taken off the list is not
        yet in the table of what is not acknowledged, and a worker that is killed just then takes it along. No worker
        has ever heard of it; it is published again.
        """
        self.site.wait_until(lambda: not self.undone() or self.at_rest(), 120)
        logs = "".join(worker.log() for worker in self.site.workers)
        unheard = [one for one in self.undone() if f"[{one}] received" not in logs]
        for one in unheard:
            self.publish(*self.sent[one], task_id=one)
        self.site.wait_until(lambda: not self.undone() or self.at_rest(), 60)
        return unheard

    def __str__(self):
        """For whoever has to find out what went wrong."""
        runs = Counter(Counter(one.task_id for one in self.site.events("start")).values())
        lines = [f"killed {self.killed} workers; how many messages were started how often: {dict(runs)}"]
        lines += [str(row) for row in ParkedMessage.objects.values_list("state", "sent", "attempts", "task_id")[:10]]
        for one in self.undone()[:3]:
            lines.append(f"{one}: {self.site.result(one).state}, its row {self.sent[one][0].pk}")
            said = [f"{worker.name[:3]} {line}" for worker in self.site.workers for line in worker.log().splitlines()]
            lines += [line[:200] for line in said if one in line]
            lines += [str(event) for event in self.site.events() if event.task_id == one]
        return "\n".join(lines)


@pytest.mark.slow
def test_storm(celery_site, closings, monkeypatch):
    """Issue 3, 3. Gold standard 8.21 (job lost silently), 8.3 (a stale holder writes)."""
    monkeypatch.setenv(queue_tasks.QUICK, "1")
    celery_site.configure(lease=2, visibility_timeout=4)
    storm = Storm(celery_site)
    storm.rage()
    calm = time.monotonic()
    unheard = storm.finish()
    print(f"{storm}\nlost by the broker's client: {len(unheard)}; {time.monotonic() - calm:.0f} s after the storm")
    assert storm.undone() == []
    assert {(video.status, video.progress) for video in Video.objects.all()} == {("ready", 100)}
    assert closings() == {video.pk: 1 for video in storm.videos}
    celery_site.wait_until(lambda: not ParkedMessage.objects.exists(), 20)
    celery_site.wait_until(lambda: not celery_site.locks.keys("task_lock:*"), 20)
    assert celery_site.waiting() == 0
