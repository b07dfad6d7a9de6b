"""What only the database has: transactions, lost answers, refusals, races of two statements, rows that get old."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import InterfaceError, OperationalError, connection, connections, transaction
from django.db.utils import IntegrityError, ProgrammingError
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from django_tasklock import TaskLock
from django_tasklock.backends.contract.rates import Terms
from django_tasklock.backends.database import permits as permit_rows, purging
from django_tasklock.db import reconnect
from django_tasklock.db.clock import Now
from django_tasklock.exceptions import BackendUnavailable, TransactionOpen
from django_tasklock.models import LimiterRow, LockRow, PermitRow, RateRow
from django_tasklock.rates.notation import parse_rates
from django_tasklock.types import Busy, Released, Renewal, RenewalResult
from tests.support.dropping import unreachable
from tests.support.stores import an_ask, eventually, granted, make
from tests.support.struck import SoftTimeLimit

pytestmark = [pytest.mark.database, pytest.mark.django_db(transaction=True)]

HOUR, DAY = 3_600_000, 86_400_000


@pytest.fixture
def backend():
    return make("database")


def queries(work) -> list[str]:
    """The statements that ``work`` sent, without those that open and close a transaction."""
    with CaptureQueriesContext(connection) as captured:
        work()
    return [query["sql"] for query in captured if query["sql"].split()[0] not in ("BEGIN", "COMMIT")]


def elsewhere(work) -> None:
    """Do ``work`` in another thread, on a connection of its own, and wait for it."""

    def run():
        try:
            work()
        except BaseException as error:
            errors.append(error)
        finally:
            connection.close()

    errors: list[BaseException] = []
    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    if errors:
        raise errors[0]


class Interference:
    """Does something once, after or instead of the first statement that begins with ``what``."""

    def __init__(self, what: str, then, *, after: bool) -> None:
        self.what, self.then, self.after, self.done = what, then, after, False

    def __call__(self, execute, sql, params, many, context):
        meets = sql.startswith(self.what) and not self.done
        if not meets:
            return execute(sql, params, many, context)
        self.done = True
        result = execute(sql, params, many, context) if self.after else None
        self.then()
        return result


class TestCost:
    def test_a_free_lock_takes_two_queries_all_else_one_and_a_busy_one_only_reads(self, backend):
        mine = an_ask("video:1")
        assert len(queries(lambda: backend.acquire(mine))) == 2
        sent = queries(lambda: backend.acquire(an_ask("video:1")))
        assert [sql.split()[0] for sql in sent] == ["SELECT"]
        backend.release("video:1", mine.token)
        held = [an_ask(f"video:{number}") for number in range(150)]
        for mine in held:
            backend.acquire(mine)
        batch = [Renewal(mine.name, mine.token, 60_000) for mine in held]
        assert len(queries(lambda: backend.renew(batch))) == 1
        backend.purging.rows = 0
        assert len(queries(lambda: backend.release("video:7", held[7].token))) == 1


class TestTransactions:
    WRITES = (
        lambda backend, mine: backend.acquire(an_ask("video:2")),
        lambda backend, mine: backend.release(mine.name, mine.token),
        lambda backend, mine: backend.extend(mine.name, mine.token, 60_000, 60_000),
        lambda backend, mine: backend.renew([Renewal(mine.name, mine.token, 60_000)]),
        lambda backend, mine: backend.remove(mine.name),
    )

    @pytest.mark.parametrize("write", WRITES, ids=["acquire", "release", "extend", "renew", "remove"])
    def test_a_verb_that_writes_is_refused_inside_a_transaction(self, backend, write):
        mine = an_ask("video:1")
        backend.acquire(mine)
        with transaction.atomic(), pytest.raises(TransactionOpen, match=r"inside an open transaction.*on_commit"):
            write(backend, mine)
        assert backend.get("video:1").token == mine.token

        transaction.set_autocommit(False)
        try:
            with pytest.raises(TransactionOpen, match="with autocommit off"):
                write(backend, mine)
        finally:
            transaction.rollback()
            transaction.set_autocommit(True)

    @pytest.mark.django_db(transaction=False)
    def test_it_works_in_a_test_case_whose_block_is_never_committed(self, backend):
        assert connection.in_atomic_block
        mine = an_ask("video:1")
        granted(backend.acquire(mine))
        assert isinstance(backend.acquire(an_ask("video:1")), Busy)
        assert backend.renew([Renewal("video:1", mine.token, 60_000)]) == [RenewalResult.RENEWED]
        assert backend.release("video:1", mine.token) is Released.RELEASED
        with transaction.atomic(), pytest.raises(TransactionOpen):
            backend.acquire(an_ask("video:1"))


class TestRaces:
    """The other one comes between our look and our write."""

    @pytest.fixture(params=["nobody had", "was released", "has lapsed"])
    def name(self, request, backend):
        if request.param == "was released":
            earlier = an_ask("video:1")
            backend.acquire(earlier)
            backend.release("video:1", earlier.token)
        elif request.param == "has lapsed":
            backend.acquire(an_ask("video:1", ttl=1))
            eventually(lambda: backend.get("video:1") is None)
        return "video:1"

    def test_the_second_of_two_concurrent_writers_finds_the_lock_busy(self, backend, name):
        other = an_ask(name)
        between = Interference("SELECT", lambda: elsewhere(lambda: granted(backend.acquire(other))), after=True)
        with connection.execute_wrapper(between):
            answer = backend.acquire(an_ask(name))
        assert between.done
        assert isinstance(answer, Busy)
        assert answer.record.token == other.token

    def test_a_removal_does_not_hit_the_next_holder(self, backend):
        mine, other = an_ask("video:1"), an_ask("video:1")
        backend.acquire(mine)

        def hand_over():
            backend.release("video:1", mine.token)
            granted(backend.acquire(other))

        with connection.execute_wrapper(Interference("SELECT", lambda: elsewhere(hand_over), after=True)):
            assert backend.remove("video:1", mine.token) is None
        assert backend.get("video:1").token == other.token

    def test_the_purge_does_not_hit_a_lock_that_was_just_taken(self, backend):
        mine = an_ask("video:1")
        backend.acquire(mine)
        backend.release("video:1", mine.token)
        LockRow.objects.update(expires_at=-1)
        other = an_ask("video:1")
        with connection.execute_wrapper(
            Interference("SELECT", lambda: elsewhere(lambda: granted(backend.acquire(other))), after=True)
        ):
            assert backend.purge() == 0
        assert backend.get("video:1").token == other.token

    @pytest.mark.parametrize("known", [True, False], ids=["a limiter that was used", "one that was not"])
    @pytest.mark.parametrize("limit", [1, 3])
    def test_who_counts_permits_that_another_counts_at_the_same_time_counts_again(
        self, backend, monkeypatch, known, limit
    ):
        """Forced: the other is granted the last permit after this one has counted and before it is granted one."""
        permits, other = backend.permits, make("database").permits
        taken = [an_ask("transcode", limit=limit) for _ in range(limit)]
        for ask in taken if known else ():
            granted(permits.acquire(ask))
            permits.release("transcode", ask.token)
        for ask in taken[1:]:
            granted(permits.acquire(ask))
        admit = permit_rows.admit

        def late(*arguments):
            monkeypatch.setattr(permit_rows, "admit", admit)
            granted(other.acquire(taken[0]))
            return admit(*arguments)

        monkeypatch.setattr(permit_rows, "admit", late)
        assert isinstance(permits.acquire(an_ask("transcode", limit=limit)), Busy)
        assert {record.token for record in permits.members("transcode")} == {ask.token for ask in taken}


class Deadlock(Exception):
    """What a driver raises: PostgreSQL's, MySQL's or SQLite's way of saying it."""

    def __init__(self, *args: object, **attributes: object) -> None:
        super().__init__(*args)
        self.__dict__.update(attributes)


PASSING = [
    Deadlock(sqlstate="40P01"),
    Deadlock(pgcode="40001"),
    Deadlock(1213, "Deadlock found"),
    Deadlock(sqlite_errorcode=261),
]


def raising(kind, cause=None):
    """Something that raises an error as Django's wrapper of the driver does."""

    def fail(*args, **kwargs):
        raise kind("planted") from cause

    return fail


class TestErrors:
    @pytest.mark.parametrize("cause", PASSING, ids=["postgresql", "psycopg2", "mysql", "sqlite"])
    def test_what_another_try_can_cure_is_tried_again_but_not_for_ever(self, backend, cause, monkeypatch):
        trouble = Interference("INSERT", raising(OperationalError, cause), after=False)
        with connection.execute_wrapper(trouble):
            granted(backend.acquire(an_ask("video:1")))
        assert trouble.done
        monkeypatch.setattr(reconnect, "CONTENDED", 0.05)
        with connection.execute_wrapper(raising(OperationalError, cause)), pytest.raises(BackendUnavailable) as raised:
            backend.acquire(an_ask("video:1"))
        assert raised.value.name == "video:1"
        assert isinstance(raised.value.__cause__, OperationalError)

    @pytest.mark.skipif(connection.vendor != "sqlite", reason="Django sends BEGIN itself")
    def test_a_time_limit_with_the_answer_to_begin_leaves_no_transaction(self, backend):
        """Otherwise the next one fails, and its traceback keeps the file locked after the connection was closed."""
        trouble = Interference("BEGIN", raising(SoftTimeLimit), after=True)
        with connection.execute_wrapper(trouble), pytest.raises(SoftTimeLimit):
            backend.acquire(an_ask("video:1"))
        granted(backend.acquire(an_ask("video:1")))

    def test_a_missing_table_is_a_matter_of_migrate(self, backend):
        with connection.schema_editor() as editor:
            editor.delete_model(LockRow)
        try:
            for work in (lambda: backend.acquire(an_ask("video:1")), lambda: backend.get("video:1"), backend.records):
                with pytest.raises(ImproperlyConfigured, match=r"tasklock_lock.*manage.py migrate tasklock"):
                    work()
        finally:
            with connection.schema_editor() as editor:
                editor.create_model(LockRow)


class TestRefusals:
    """The database serves others, who may hold what is asked for: nothing is run without it then."""

    @pytest.fixture(autouse=True)
    def _in_force(self, settings, monkeypatch):
        settings.TASKLOCK = {"BACKEND": "django_tasklock.backends.database.DatabaseBackend", "ON_UNAVAILABLE": "run"}
        monkeypatch.setattr(reconnect, "CONTENDED", 0.05)

    def refused(self, match):
        """Nothing is taken, and nothing begins."""
        lock = TaskLock("video:1")
        with pytest.raises(BackendUnavailable, match=match) as caught:
            lock.acquire()
        assert caught.value.down is False
        assert not lock.taken

    def test_of_a_statement_and_of_a_connection(self, backend):
        connection.ensure_connection()
        with connection.execute_wrapper(raising(ProgrammingError)):
            self.refused("planted")
        for says in (
            "FATAL:  sorry, too many clients already",
            "Access denied for user 'a'",
            'FATAL:  password authentication failed for user "a"',
            'FATAL:  database "a" does not exist',
            "failed to resolve host 'a': .Errno -2. Name or service not known",
            "server does not support SSL, but SSL was required",
            'connection to server on socket "/nowhere/.s.PGSQL.5432" failed: No such file or directory',
            'could not translate host name "a": unknown; connection to server at "b" failed: Connection refused',
            "unable to open database file",
        ):
            connection.close()
            with unreachable(10, says):
                self.refused(says)
        for says in ("connection refused", "connection timeout expired", "FATAL:  the database system is starting up"):
            connection.close()
            with unreachable(10, says), pytest.raises(BackendUnavailable) as caught:
                backend.acquire(an_ask("video:1"))
            assert caught.value.down is True, "nobody reaches it"

    def test_a_file_that_somebody_else_writes_to(self, backend):
        if connection.vendor != "sqlite":
            pytest.skip("only SQLite locks its file")
        granted(backend.acquire(an_ask("video:2")))
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA busy_timeout = 20")
        path = str(connection.settings_dict["NAME"])
        with contextlib.closing(sqlite3.connect(path, isolation_level=None, uri=path.startswith("file:"))) as writer:
            writer.execute("BEGIN IMMEDIATE")
            self.refused("locked")
            assert TaskLock("video:2").acquire() is False
        connection.close()


class TestLostReplies:
    """The connection drops after the statement was executed."""

    @pytest.fixture(autouse=True)
    def dropped(self, monkeypatch):
        monkeypatch.setattr(type(connections["default"]), "is_usable", lambda connection: False)

    def lost(self, kind=OperationalError):
        return connection.execute_wrapper(Interference("UPDATE", raising(kind), after=True))

    @pytest.mark.parametrize("kind", [OperationalError, InterfaceError])
    def test_the_verb_that_is_sent_again_tells_what_it_did_the_first_time(self, backend, kind):
        earlier, mine = an_ask("video:1"), an_ask("video:1", ttl=5000)
        backend.acquire(earlier)
        backend.release("video:1", earlier.token)
        with self.lost(kind):
            grant = granted(backend.acquire(mine))
        record = backend.get("video:1")
        assert (record.token, record.fence) == (mine.token, grant.fence)
        with self.lost(kind):
            assert backend.renew([Renewal("video:1", mine.token, 60_000)]) == [RenewalResult.RENEWED]
        with self.lost(kind):
            assert backend.extend("video:1", mine.token, 60_000, 60_000) is True
        with self.lost(kind):
            assert backend.release("video:1", mine.token) is Released.RELEASED
        assert backend.get("video:1") is None

    def test_a_release_of_what_was_removed_by_force_does_not_claim_to_have_freed_it(self, backend):
        mine = an_ask("video:1")
        backend.acquire(mine)
        backend.remove("video:1")
        with self.lost():
            assert backend.release("video:1", mine.token) is Released.GONE


class TestConnections:
    def test_rest_closes_the_connection_of_this_thread_only(self, backend):
        backend.get("video:1")
        seen = []

        def use_it():
            backend.get("video:1")
            seen.append(connection.connection is None)
            backend.close_idle()
            seen.append(connection.connection is None)

        elsewhere(use_it)
        assert seen == [False, True]
        assert connection.connection is not None

    def test_the_routers_say_where_the_locks_are(self, backend):
        asked = []

        class Router:
            def db_for_write(self, model, **hints):
                asked.append(model)
                return "default"

            def db_for_read(self, model, **hints):
                raise AssertionError("a replica may not know the lock yet")

        with override_settings(DATABASE_ROUTERS=[Router()]):
            backend.acquire(an_ask("video:1"))
            backend.get("video:1")
            backend.records()
        assert set(asked) == {LockRow}


class TestOldRows:
    def age(self, name: str, **values: object) -> None:
        LockRow.objects.filter(name=name).update(**values)

    def test_a_released_row_goes_after_an_hour_and_a_lapsed_one_after_a_day(self, backend):
        now = int(time.time() * 1000)
        for name in ("just released", "released long ago", "lapsed today", "lapsed long ago", "held"):
            backend.acquire(an_ask(name))
        self.age("just released", expires_at=-(now - HOUR // 2))
        self.age("released long ago", expires_at=-(now - 2 * HOUR))
        self.age("lapsed today", expires_at=now - DAY // 2)
        self.age("lapsed long ago", expires_at=now - 2 * DAY)
        assert backend.purge() == 2
        assert set(LockRow.objects.values_list("name", flat=True)) == {"just released", "lapsed today", "held"}
        assert [record.name for record in backend.records()] == ["held"]

    @pytest.mark.parametrize("of", ["locks", "locks that lapse", "limiters", "rates"])
    def test_old_rows_go_faster_than_new_ones_come(self, backend, monkeypatch, of):
        """However many names there are a second, one for each customer, say. It was 200 rows in ten minutes."""
        monkeypatch.setattr(purging, "EVERY", 8)
        model = {"limiters": LimiterRow, "rates": RateRow}.get(of, LockRow)
        more = {"fence": 1} if model is LimiterRow else {"name": "old", "expires_at": -1 if of == "locks" else 1}
        for number in range(60):
            model.objects.create(key=f"old:{number}", **more)
        for number in range(48):
            mine = an_ask(f"new:{number}", limit=2)
            if of == "rates":
                backend.rates.reserve(Terms(mine.name, parse_rates("5/s")), 1, 1_000_000)
            else:
                leases = backend.permits if of == "limiters" else backend
                granted(leases.acquire(mine))
                if of != "locks that lapse":
                    leases.release(mine.name, mine.token)
        assert model.objects.filter(key__startswith="old:").count() == 0
        assert model.objects.count() == 48

    def test_a_purge_that_fails_does_not_fail_the_release(self, backend):
        mine = an_ask("video:1")
        backend.acquire(mine)
        backend.purging.rows = purging.EVERY
        with connection.execute_wrapper(Interference("SELECT", raising(IntegrityError), after=False)):
            assert backend.release("video:1", mine.token) is Released.RELEASED

    def test_a_permit_that_lapsed_goes_with_the_next_grant_and_the_rest_after_an_hour(self, backend):
        permits = backend.permits
        granted(permits.acquire(an_ask("transcode", limit=2)))
        PermitRow.objects.update(expires_at=1)
        granted(permits.acquire(an_ask("transcode", limit=2)))
        assert PermitRow.objects.count() == 1
        live = an_ask("other", limit=2)
        granted(permits.acquire(live))
        assert permits.purge() == 0
        PermitRow.objects.exclude(token=live.token).update(expires_at=5)
        LimiterRow.objects.update(fence=7)
        assert permits.purge() == 3
        assert list(PermitRow.objects.values_list("token", flat=True)) == [live.token]
        assert isinstance(permits.acquire(an_ask("other", limit=1)), Busy)  # counted without its limiter's row
        assert granted(permits.acquire(an_ask("other", limit=2)))

    def test_processes_that_add_few_rows_each_do_their_share(self, monkeypatch):
        """A command that runs each minute, takes a lock of a new name, and ends."""
        monkeypatch.setattr(purging, "EVERY", 4)
        LockRow.objects.create(key="old", name="old", expires_at=-1)
        for number in range(200):  # all of them have missed their chance of one in four once in 10**25 runs
            backend, mine = make("database"), an_ask(f"video:{number}")
            backend.acquire(mine)
            backend.release(mine.name, mine.token)
            if not LockRow.objects.filter(name="old").exists():
                return
        pytest.fail("nobody purged")


def test_the_clock_is_that_of_the_database_in_milliseconds_since_1970():
    LockRow.objects.create(key="k", name="n")
    before = int(time.time() * 1000)
    (now,) = LockRow.objects.annotate(now=Now()).values_list("now", flat=True)
    assert isinstance(now, int)
    assert before - 5000 < now < time.time() * 1000 + 5000
