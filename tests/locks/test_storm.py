"""Everything fails at once, for minutes: never two holders while a lease is intact, never a stale write, nothing left.

``TASKLOCK_TEST_STORM=300``: seconds of it on each store; 5 by default, so that a test run stays short.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from django.db import DatabaseError, connection, connections

from django_tasklock.operations import list_locks
from tests.support.redis_server import RedisServer
from tests.support.stores import clear, eventually
from tests.support.storm import LEASE, NAMES, Seen, judge, read
from tests.support.workers import Crew, Worker
from tests.testapp.models import Note, Video

pytest_plugins = ["tests.support.worker_fixtures"]

SECONDS = float(os.environ.get("TASKLOCK_TEST_STORM", "5"))
PROCESSES = 4

# The table itself says whether a write of an earlier epoch came after one of a later.
BACKWARDS = {
    "sqlite": ["""
        CREATE TRIGGER backwards AFTER UPDATE OF progress ON testapp_video WHEN NEW.progress < OLD.progress
        BEGIN INSERT INTO testapp_note (video_id, text) VALUES (NEW.id, OLD.progress || ' ' || NEW.progress); END
    """],
    "mysql": ["""
        CREATE TRIGGER backwards AFTER UPDATE ON testapp_video FOR EACH ROW
        IF NEW.progress < OLD.progress THEN
            INSERT INTO testapp_note (video_id, text) VALUES (NEW.id, CONCAT(OLD.progress, ' ', NEW.progress));
        END IF
    """],
    "postgresql": ["""
        CREATE FUNCTION backwards() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            INSERT INTO testapp_note (video_id, text) VALUES (NEW.id, OLD.progress || ' ' || NEW.progress); RETURN NULL;
        END $$
    """, """
        CREATE TRIGGER backwards AFTER UPDATE ON testapp_video FOR EACH ROW
        WHEN (NEW.progress < OLD.progress) EXECUTE FUNCTION backwards()
    """],
}  # fmt: skip
GONE = {
    "sqlite": ["DROP TRIGGER backwards"],
    "mysql": ["DROP TRIGGER backwards"],
    "postgresql": ["DROP TRIGGER backwards ON testapp_video", "DROP FUNCTION backwards"],
}


@pytest.fixture
def backwards(transactional_db: None) -> Iterator[None]:
    """Fails if a row has taken a write of an epoch that was over."""
    with connection.cursor() as cursor:
        for statement in BACKWARDS[connection.vendor]:
            cursor.execute(statement)
    yield
    with connection.cursor() as cursor:
        for statement in GONE[connection.vendor]:
            cursor.execute(statement)
    assert list(Note.objects.values_list("video_id", "text")) == []


class Storm:
    """Processes that take locks, and what is done to them meanwhile."""

    def __init__(self, crew: Crew, tasklock: dict[str, Any], directory: Path) -> None:
        self.crew = crew
        self.log, self.ends = directory / "log", directory / "ends"
        self.log.touch()
        self.rows = [Video.objects.create().pk for _ in range(NAMES)]
        self.code = f"rage({str(self.log)!r}, {tasklock!r}, {str(self.ends)!r}, {self.rows!r})"
        self.workers = [self.begin() for _ in range(PROCESSES)]
        self.done: Counter[str] = Counter()

    def begin(self) -> Worker:
        return self.crew.hire("from tests.support.storm import rage").start(self.code)

    def blows(self, *more: Callable[[], None]) -> None:
        """Do one of these things after the other, for the seconds of the storm."""
        over = time.monotonic() + SECONDS
        while time.monotonic() < over:
            what = random.choice([self.kills, self.stops, *more])
            what()
            self.done[what.__name__] += 1
            time.sleep(random.uniform(0.05, 0.4))

    def kills(self) -> None:
        number = random.randrange(PROCESSES)
        self.workers[number].kill()
        self.workers[number] = self.begin()

    def stops(self) -> None:
        """Often for longer than a lease."""
        worker = random.choice(self.workers)
        worker.stop()
        time.sleep(random.choice([0.1, LEASE * 1.2]))
        worker.go_on()

    def calms(self) -> None:
        """Every process ends what it does, and lives on: what it would still renew can be seen."""
        self.ends.touch()
        for worker in self.workers:
            try:
                worker.done(240)  # SQLite lets nobody wait in order: on a busy machine some wait for long
            except AssertionError:
                os.kill(worker.pid, signal.SIGUSR1)
                pytest.fail(eventually(Path(f"{self.log}-{worker.pid}").read_text))

    def verdict(self) -> list[Seen]:
        seen = read(self.log)
        print(f"{dict(self.done)}; {dict(Counter(one.kind for one in seen))}")
        assert judge(seen) == []
        assert {"lock", "permit", "wrote"} <= {one.kind for one in seen}, "nothing was done"
        return seen


@pytest.mark.slow
@pytest.mark.redis
def test_redis(crew: Crew, redis_server: RedisServer, settings: Any, backwards: None, tmp_path: Path) -> None:
    """Kills, stops, a frozen server, full memory, no more clients, keys of another type, steps of the clients' clocks,
    cancelled coroutines, time limits, log handlers that raise."""
    settings.TASKLOCK = {"LOCATION": redis_server.url}
    assert redis_server.process is not None
    server, client = redis_server.process, redis.Redis.from_url(redis_server.url, socket_timeout=30)
    storm = Storm(crew, settings.TASKLOCK, tmp_path)

    def freezes() -> None:
        server.send_signal(signal.SIGSTOP)
        time.sleep(random.choice([0.1, 0.5, LEASE * 1.2]))
        server.send_signal(signal.SIGCONT)

    def fills_up() -> None:
        client.config_set("maxmemory", 1)
        time.sleep(random.uniform(0.1, LEASE / 2))
        client.config_set("maxmemory", 0)

    def has_no_room() -> None:
        client.config_set("maxclients", 1)
        client.client_kill_filter(_type="normal", skipme=True)
        time.sleep(random.uniform(0.1, LEASE / 2))
        client.config_set("maxclients", 10_000)

    def is_misused() -> None:
        """What is of another type is nobody's lock; the others' must not suffer."""
        key = f"task_lock:plain:{random.choice(storm.workers).pid}:{random.randrange(NAMES)}"
        client.delete(key)
        client.rpush(key, "x")
        client.pexpire(key, 500)

    storm.blows(freezes, fills_up, has_no_room, is_misused)
    storm.calms()
    eventually(lambda: not list(client.scan_iter("task_lock:*")), 30)
    eventually(lambda: not list_locks().locks, 30)
    storm.verdict()


@pytest.mark.slow
@pytest.mark.database
def test_database(crew: Crew, settings: Any, backwards: None, tmp_path: Path) -> None:
    """The same where lock and row are in one database, whose sessions end and whose file is locked."""
    settings.TASKLOCK = {"BACKEND": "django_tasklock.backends.database.DatabaseBackend"}
    clear("database")
    storm = Storm(crew, settings.TASKLOCK, tmp_path)
    hits = {"sqlite": file_is_locked, "postgresql": sessions_end, "mysql": sessions_end}
    storm.blows(hits[connection.vendor])
    storm.calms()
    eventually(lambda: not list_locks().locks, 30)
    storm.verdict()


def sessions_end() -> None:
    """Each but this one."""
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
                " AND pid <> pg_backend_pid()"
            )
            return
        cursor.execute("SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()")
        for (session,) in cursor.fetchall():
            with contextlib.suppress(DatabaseError):  # it has ended by itself
                cursor.execute(f"KILL {session}")


def file_is_locked() -> None:
    """Nobody can write meanwhile."""
    with contextlib.suppress(DatabaseError), connection.cursor() as cursor:
        cursor.execute("BEGIN IMMEDIATE")
        time.sleep(random.choice([0.1, 0.5]))
        cursor.execute("ROLLBACK")
    connections.close_all()


A, B = "a" * 32, "b" * 32


class TestJudge:
    def test_one_after_the_other_is_right(self) -> None:
        assert judge([Seen("lock", "x", A, 1, 2), Seen("lock", "x", A, 3, 3), Seen("lock", "x", B, 4, 5)]) == []
        assert judge([Seen("lock", "x", A, 1, 9), Seen("lock", "y", B, 2, 3)]) == []
        assert judge([Seen("permit", "x", A, 1, 9), Seen("permit", "x", B, 2, 3)]) == []
        assert (
            judge([Seen("wrote", "1", "1", 1, 2), Seen("wrote", "1", "2", 2, 4), Seen("wrote", "1", "1", 3, 4)]) == []
        )

    @pytest.mark.parametrize(
        ("seen", "finding"),
        [
            ([Seen("lock", "x", A, 1, 3), Seen("lock", "x", B, 2, 4)], "lock x: 2 at once"),
            ([Seen("lock", "x", A, 1, 1), Seen("lock", "x", B, 2, 2), Seen("lock", "x", A, 3, 3)], "lock x: 2 at once"),
            ([Seen("permit", "x", str(one), 1, 3) for one in range(3)], "permit x: 3 at once"),
            (
                [Seen("wrote", "1", "2", 1, 2), Seen("wrote", "1", "1", 3, 4)],
                "row 1: a write of epoch 1 after one of 2",
            ),
            ([Seen("error", "scene: TypeError()", "", 0, 0)], "unexpected: scene: TypeError()"),
        ],
    )
    def test_all_else_is_wrong(self, seen: list[Seen], finding: str) -> None:
        assert any(found.startswith(finding) for found in judge(seen))
