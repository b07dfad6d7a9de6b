"""Another transaction has locked the row: a claim gives up soon, and a closing write does not."""

from __future__ import annotations

import logging
import threading
from contextlib import suppress

import pytest
from django.db import OperationalError, connection

from django_tasklock import GuardRejected, StaleClaim, TaskLock, TaskLockError, model_lock
from django_tasklock.db import reconnect
from django_tasklock.operations import Actor, release_lock
from django_tasklock.signals import claim_rejected
from tests.support.guards import GUARD, elsewhere, heard, locked_row, states, take
from tests.testapp.models import PlainVideo, Video

pytestmark = [pytest.mark.database, pytest.mark.django_db(transaction=True), pytest.mark.tasklock("memory")]


@pytest.fixture(autouse=True)
def _sqlite_gives_up_soon(monkeypatch):
    """It waits for its ``timeout``, of 5 s by default, and is asked again for ``CONTENDED`` seconds."""
    if connection.vendor == "sqlite":
        monkeypatch.setattr(reconnect, "CONTENDED", 0.3)
        monkeypatch.setitem(connection.settings_dict["OPTIONS"], "timeout", 0.1)
        connection.close()
    yield
    connection.close()


class Unlocking(logging.Handler):
    """Locks a row, until the wait for that is logged."""

    def __init__(self, row):
        super().__init__(logging.WARNING)
        self.told = False
        self._locked = locked_row(row)
        self._unlock = self._locked.__enter__()
        logging.getLogger("django_tasklock").addHandler(self)

    def emit(self, record):
        if "another transaction holds a lock on the row, trying again" in record.getMessage():
            self.told = True
            self._unlock()

    def end(self):
        logging.getLogger("django_tasklock").removeHandler(self)
        self._locked.__exit__(None, None, None)


def call(row, body=lambda: pytest.fail("the body ran"), **options):
    @model_lock(type(row), "row-locks:{pk}", guard=GUARD, **options)
    def work(pk):
        return body()

    return work(row.pk)


def waits():
    """How long this session waits for a row lock, as its server says."""
    asks = {"postgresql": "SHOW lock_timeout", "mysql": "SELECT @@innodb_lock_wait_timeout"}
    with connection.cursor() as cursor:
        cursor.execute(asks.get(connection.vendor, "PRAGMA busy_timeout"))
        return cursor.fetchone()[0]


class TestTheClaim:
    def test_gives_up_while_the_lock_is_there(self):
        row = Video.objects.create()
        before = waits()
        with locked_row(row), heard(claim_rejected) as told:
            with pytest.raises(GuardRejected, match="another transaction holds a lock on the row") as caught:
                take(row)
            assert (caught.value.reason, caught.value.state) == ("row_locked", None)
            assert [(one["pk"], one["state"], one["reason"]) for one in told] == [(row.pk, None, "row_locked")]
            assert waits() == before, "the session is as it was"
            name = f"row-locks:{row.pk}"
            assert call(row) == {"status": "skipped", "reason": "row_locked", "name": name, "state": None}
            with pytest.raises(GuardRejected):
                call(row, on_conflict="wait")
            assert not TaskLock(name).locked()
        take(row).finish()
        assert states(row)[0] == "ready"

    def test_a_row_that_is_not_committed_yet_is_missing(self):
        """MySQL waits for it, and SQLite for its file; whoever is skipped for a lock is not tried again."""
        row = Video(pk=123_456)
        with locked_row(row, write=lambda: Video.objects.create(pk=row.pk)):
            with pytest.raises(GuardRejected) as caught:
                take(row)
            assert caught.value.reason == "missing"
        take(row).finish()


class TestTheEnd:
    @pytest.mark.parametrize(
        ("model", "error", "limited"),
        [(Video, None, False), (PlainVideo, ValueError("codec"), False), (Video, None, True)],
        ids=["done", "failed", "with a limit of the session"],
    )
    def test_a_closing_write_waits_and_says_for_what(self, model, error, limited):
        row, locks = model.objects.create(), []
        limits = {"postgresql": "SET lock_timeout = 50", "mysql": "SET SESSION innodb_lock_wait_timeout = 1"}

        def body():
            if limited or connection.vendor == "mysql":  # whose own limit is 50 s
                with connection.cursor() as cursor:
                    cursor.execute(limits.get(connection.vendor, "PRAGMA busy_timeout = 50"))
            locks.append(Unlocking(row))
            if error:
                raise error

        try:
            if error:
                with pytest.raises(ValueError, match="codec") as caught:
                    call(row, body)
                assert not hasattr(caught.value, "__notes__")
            else:
                call(row, body)
        finally:
            locks[0].end()
        assert locks[0].told
        assert states(row)[0] == ("failed" if error else "ready")

    def test_it_is_sent_three_times_however_long_each_takes(self, monkeypatch):
        monkeypatch.setattr(reconnect, "CONTENDED", 0)
        claim = take(Video.objects.create())
        claim.closing_patience = 1e-9
        left = 2

        def refuses(execute, sql, params, many, context):
            nonlocal left
            if left and sql.startswith("UPDATE"):
                left -= 1
                raise OperationalError("refused") from type("Driver", (Exception,), {"sqlstate": "55P03"})()
            return execute(sql, params, many, context)

        with connection.execute_wrapper(refuses):
            claim.finish()
        assert left == 0


class TestOperators:
    def test_a_release_by_force_gives_up_and_says_why(self):
        if connection.vendor == "mysql":
            with connection.cursor() as cursor:
                cursor.execute("SET SESSION innodb_lock_wait_timeout = 1")
        video = Video.objects.create()
        lock, ready, may_end = f"row-locks:{video.pk}", threading.Event(), threading.Event()

        def body():
            ready.set()
            may_end.wait(300)

        def work():
            with suppress(StaleClaim):  # it was released by force
                call(video, body)

        worker = threading.Thread(target=lambda: elsewhere(work, 330))
        worker.start()
        try:
            assert ready.wait(60)
            with (
                locked_row(video),
                pytest.raises(TaskLockError, match="another transaction holds a lock"),
            ):
                release_lock(lock, by=Actor("operator"))
            assert TaskLock(lock).locked()
            assert release_lock(lock, by=Actor("operator"))
        finally:
            may_end.set()
            worker.join(60)
        assert states(video) == ("processing", 0, 2)
