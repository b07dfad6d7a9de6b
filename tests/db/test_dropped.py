"""The database drops the connection while a body runs for hours: what is replaced, sent again, and sent once."""

from __future__ import annotations

import signal
import time
from contextlib import ExitStack

import pytest
from django.db import DatabaseError, OperationalError, connection
from django.db.models import Case, F, Func, OuterRef, Q, Subquery, Value, When
from django.db.models.expressions import RawSQL
from django.db.models.functions import Now

from django_tasklock import StaleClaim, TaskLock, current_claim, model_lock
from django_tasklock.db import reconnect as dropped
from django_tasklock.signals import claim_stale
from tests.support.dropping import counted, unreachable
from tests.support.guards import ONCE, answer_lost, database_hangs_up, elsewhere, heard, states, take
from tests.testapp.models import Note, Video

pytestmark = [pytest.mark.database, pytest.mark.django_db(transaction=True), pytest.mark.tasklock("memory")]


def only(*vendors):
    if connection.vendor not in vendors:
        pytest.skip(f"only on {' and '.join(vendors)}")


def notes():
    """How often the closing write arrived, by state."""
    return list(Note.objects.values_list("text", flat=True))


def body_that(step, **options):
    """A guarded function that uses the database, then does ``step(claim)``."""

    @model_lock(Video, "dropped:{pk}", guard=ONCE, pk="pk", **options)
    def work(pk):
        Note.objects.count()
        return step(current_claim())

    return work


class TestTwoHours:
    """Issue 5, 5: between the beginning and the end of a body its connection is killed; a trigger counts the ends."""

    @pytest.fixture(autouse=True)
    def _counted(self):
        with counted():
            yield

    @pytest.mark.parametrize("keeps", [None, True, False])
    def test_the_closing_write_arrives_exactly_once(self, keeps):
        video = Video.objects.create()

        def hours(claim):
            for hour in range(2):
                claim.update(progress=hour)
                Note.objects.count()
                stack.close()
                stack.enter_context(database_hangs_up())

        with ExitStack() as stack:
            body_that(hours, release_connections=keeps)(video.pk)
        assert states(video) == ("ready", 1, 1)
        assert notes() == ["ready"]

    def test_also_if_its_own_answer_is_lost(self):
        video = Video.objects.create()
        with heard(claim_stale) as told, ExitStack() as stack:
            body_that(lambda claim: stack.enter_context(answer_lost("UPDATE")))(video.pk)
        assert told == []
        assert states(video) == ("ready", 0, 1)
        assert notes() == ["ready"]

    def test_also_if_the_database_is_away_for_a_while(self, caplog):
        """A restart, or a failover: connections are refused for some seconds."""
        video = Video.objects.create()
        refused = []

        def hours(claim):
            stack.enter_context(database_hangs_up())
            refused.append(stack.enter_context(unreachable(4)))

        with ExitStack() as stack:
            body_that(hours)(video.pk)
        assert len(refused[0]) == 4
        assert states(video)[0] == "ready"
        assert notes() == ["ready"]
        assert caplog.text.count("the database closed the connection") == 1

    def test_not_if_the_row_was_taken_meanwhile(self):
        video = Video.objects.create()
        stale = take(video)
        successor = elsewhere(lambda: take(video))
        Note.objects.count()
        with database_hangs_up(), pytest.raises(StaleClaim):
            stale.finish()
        successor.finish()
        assert notes() == ["ready"]


class TestWhatMayNotBeSentTwice:
    def test_which_that_is(self):
        twice = {"a": 1, "b": "x", "c": Now(), "d": Value(3)}
        assert dropped.repeatable(twice)
        others = Subquery(Video.objects.filter(pk=OuterRef("pk")).values("progress"))
        condition = Case(When(progress=0, then=1), default=2)  # 0 becomes 1; sent again, it would become 2
        function = Func(function="nextval")  # whatever it does
        for value in (F("n") + 1, RawSQL("n + 1", ()), others, condition, Q(progress=0), function):
            assert not dropped.repeatable({**twice, "e": value}), value

    def test_it_is_sent_on_a_connection_that_was_looked_at(self, caplog):
        video = Video.objects.create()
        claim = take(video)
        for _ in range(3):
            Note.objects.count()
            with database_hangs_up():
                claim.update(progress=F("progress") + 1)
        assert states(video) == ("processing", 3, 1)
        assert caplog.text == ""

    def test_and_is_not_sent_again_if_it_may_have_been_executed(self):
        video = Video.objects.create()
        claim = take(video)
        with answer_lost("UPDATE") as lost, pytest.raises(OperationalError) as caught:
            claim.update(progress=F("progress") + 1)
        assert len(lost) == 1
        assert caught.value.__notes__ == ["it may have been executed all the same, and was not sent again for that"]
        assert states(video) == ("processing", 1, 1)
        claim.finish()
        assert states(video) == ("ready", 1, 1)

    def test_but_if_it_cannot_have_been_it_is(self):
        video = Video.objects.create()
        claim = take(video)
        connection.close()
        with unreachable(3):
            claim.update(progress=F("progress") + 1)
        assert states(video) == ("processing", 1, 1)


class TestServersThatDrop:
    def test_a_primary_that_was_demoted(self, caplog):
        """After a failover the old connection leads to a server that refuses writes: the name leads elsewhere now."""
        only("postgresql", "mysql")
        video = Video.objects.create()
        demoting = {
            "postgresql": "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY",
            "mysql": "SET SESSION TRANSACTION READ ONLY",
        }

        def failover(claim):
            with connection.cursor() as cursor:
                cursor.execute(demoting[connection.vendor])

        body_that(failover)(video.pk)
        assert states(video)[0] == "ready"
        assert "the database is read-only, trying again" in caplog.text

    def test_a_time_limit_in_the_middle_of_a_query(self, settings):
        """The connection still waits for an answer that nobody reads: psycopg refuses the next query on it."""
        only("postgresql", "mysql")
        video = Video.objects.create()
        query = {"postgresql": "SELECT pg_sleep(2)", "mysql": "SELECT SLEEP(1)"}[connection.vendor]

        class TimeLimit(Exception):
            pass

        def strike(*what):
            raise TimeLimit

        def waits(claim):
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with connection.cursor() as cursor:
                cursor.execute(query)
            pytest.fail("the query ended")

        settings.TASKLOCK = {"BACKEND": "django_tasklock.backends.database.DatabaseBackend"}
        before = signal.signal(signal.SIGALRM, strike)
        try:
            with pytest.raises((TimeLimit, DatabaseError, connection.Database.Error)) as caught:
                body_that(waits)(video.pk)
        finally:
            signal.signal(signal.SIGALRM, before)
        assert not hasattr(caught.value, "__notes__")
        assert states(video)[0] == "failed"
        assert not TaskLock(f"dropped:{video.pk}").locked()

    def test_what_a_live_connection_refuses_is_not_waited_for(self, monkeypatch):
        video = Video.objects.create()
        claim = take(video)
        monkeypatch.setattr(dropped, "PATIENCE", 60)

        def refuses(execute, sql, params, many, context):
            tried.append(sql)
            raise OperationalError("disk full")

        tried = []
        with connection.execute_wrapper(refuses), pytest.raises(OperationalError):
            claim.update(progress=1)
        assert len(tried) == 2

    def test_one_that_stays_away_is_told_of_in_the_end(self, monkeypatch):
        from django_tasklock.guards import claim as claims

        monkeypatch.setattr(claims, "PATIENCE", 0.5)
        video = Video.objects.create()
        claim = take(video)
        connection.close()
        began = time.monotonic()
        with unreachable(10_000) as refused, pytest.raises(OperationalError, match="refused"):
            claim.finish()
        assert time.monotonic() - began > 0.4
        assert len(refused) > 2
        claim.finish()
        assert states(video)[0] == "ready"

    def test_a_claim_is_not_waited_for_that_long(self):
        """Nothing is lost yet: whoever publishes it may try again."""
        video = Video.objects.create()
        connection.close()
        with unreachable(4) as refused, pytest.raises(OperationalError, match="refused"):
            take(video)
        assert len(refused) <= 3
