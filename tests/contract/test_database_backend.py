"""What only the database backend has: transactions, dropped connections, races of two statements, old rows."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
import time

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import InterfaceError, OperationalError, connection, connections, transaction
from django.db.utils import DatabaseError, IntegrityError, ProgrammingError
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from django_tasklock import TaskLock
from django_tasklock.backends.database import purging
from django_tasklock.db import reconnect
from django_tasklock.db.clock import Now
from django_tasklock.exceptions import BackendUnavailable, TransactionOpen
from django_tasklock.models import LockRow
from django_tasklock.types import Busy, Released, Renewal, RenewalResult
from tests.support.database_pool import needs_pool, pooled
from tests.support.dropping import unreachable
from tests.support.stores import an_ask, eventually, granted, make
from tests.support.struck import STRIKES, SoftTimeLimit, struck_end

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
    def test_a_free_lock_takes_two_queries_and_a_busy_one_a_reading_one(self, backend):
        mine = an_ask("video:1")
        assert len(queries(lambda: backend.acquire(mine))) == 2
        sent = queries(lambda: backend.acquire(an_ask("video:1")))
        assert [sql.split()[0] for sql in sent] == ["SELECT"]
        backend.release("video:1", mine.token)
        assert len(queries(lambda: backend.acquire(an_ask("video:1")))) == 2

    def test_a_release_and_a_batch_of_renewals_take_one_query_each(self, backend):
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
    def test_a_verb_that_writes_is_refused_inside_atomic(self, backend, write):
        mine = an_ask("video:1")
        backend.acquire(mine)
        with transaction.atomic(), pytest.raises(TransactionOpen, match=r"inside an open transaction.*on_commit"):
            write(backend, mine)
        assert backend.get("video:1").token == mine.token

    def test_it_is_refused_where_autocommit_is_off(self, backend):
        transaction.set_autocommit(False)
        try:
            with pytest.raises(TransactionOpen, match="with autocommit off"):
                backend.acquire(an_ask("video:1"))
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
    @pytest.mark.parametrize("statement", ["SELECT", "INSERT"])
    def test_what_another_try_can_cure_is_tried_again(self, backend, cause, statement):
        trouble = Interference(statement, raising(OperationalError, cause), after=False)
        with connection.execute_wrapper(trouble):
            granted(backend.acquire(an_ask("video:1")))
        assert trouble.done

    def test_but_not_for_ever(self, backend, monkeypatch):
        monkeypatch.setattr(reconnect, "CONTENDED", 0.05)

        def fail(*args):
            raise OperationalError("database is locked") from PASSING[3]

        with (
            connection.execute_wrapper(fail),
            pytest.raises(BackendUnavailable, match="database is locked") as raised,
        ):
            backend.acquire(an_ask("video:1"))
        assert raised.value.name == "video:1"
        assert isinstance(raised.value.__cause__, OperationalError)

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


class TestStruck:
    """A time limit strikes as a transaction ends, and then Django asks for autocommit inside of it."""

    @pytest.mark.parametrize("how", ["_commit", "_rollback"])
    @pytest.mark.parametrize(("strike", "error"), STRIKES)
    def test_it_leaves_no_transaction(self, backend, how, strike, error):
        trouble = Interference("INSERT", raising(IntegrityError), after=True)
        connection.ensure_connection()
        with struck_end(how, strike) as seen, contextlib.ExitStack() as stack:
            if how == "_rollback":
                stack.enter_context(connection.execute_wrapper(trouble))
            with pytest.raises((error, BackendUnavailable)):
                backend.acquire(an_ask("video:1"))
            assert seen == [how, "refused"]
            granted(backend.acquire(an_ask("video:2")))  # on a connection that is in no transaction

    @pytest.mark.skipif(connection.vendor != "sqlite", reason="Django sends BEGIN itself")
    def test_with_the_answer_to_begin_it_leaves_no_transaction(self, backend):
        """Otherwise the next one fails, and its traceback keeps the file locked after the connection was closed."""
        trouble = Interference("BEGIN", raising(SoftTimeLimit), after=True)
        with connection.execute_wrapper(trouble), pytest.raises(SoftTimeLimit):
            backend.acquire(an_ask("video:1"))
        granted(backend.acquire(an_ask("video:1")))


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

    @pytest.mark.parametrize("kind", [OperationalError, ProgrammingError, DatabaseError])
    def test_of_a_statement(self, kind):
        def fail(*args):
            raise kind("permission denied for table tasklock_lock")

        connection.ensure_connection()
        with connection.execute_wrapper(fail):
            self.refused("permission denied")

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

    @pytest.mark.parametrize("says", ["FATAL:  sorry, too many clients already", "Access denied for user 'a'"])
    def test_of_a_connection(self, says):
        connection.close()
        with unreachable(10, says):
            self.refused(says)

    def test_but_a_database_that_cannot_be_reached_is_down(self, backend):
        connection.close()
        with unreachable(10), pytest.raises(BackendUnavailable) as caught:
            backend.acquire(an_ask("video:1"))
        assert caught.value.down is True

    def test_a_pool_whose_connections_are_all_in_use(self):
        needs_pool()
        with pooled(max_size=1, timeout=0.1):
            connection.ensure_connection()
            elsewhere(lambda: self.refused("couldn't get a connection"))


class TestLostReplies:
    """The connection drops after the statement was executed."""

    @pytest.fixture(autouse=True)
    def dropped(self, monkeypatch):
        monkeypatch.setattr(type(connections["default"]), "is_usable", lambda connection: False)

    @pytest.mark.parametrize("kind", [OperationalError, InterfaceError])
    def test_an_acquire_that_had_taken_the_lock_has_it(self, backend, kind):
        mine = an_ask("video:1")
        backend.acquire(mine)
        backend.release("video:1", mine.token)
        mine = an_ask("video:1")
        trouble = Interference("UPDATE", raising(kind), after=True)
        with connection.execute_wrapper(trouble):
            grant = granted(backend.acquire(mine))
        assert trouble.done
        record = backend.get("video:1")
        assert (record.token, record.fence) == (mine.token, grant.fence)

    def test_a_release_that_had_freed_the_lock_says_so(self, backend):
        mine = an_ask("video:1")
        backend.acquire(mine)
        with connection.execute_wrapper(Interference("UPDATE", raising(OperationalError), after=True)):
            assert backend.release("video:1", mine.token) is Released.RELEASED
        assert backend.get("video:1") is None

    def test_a_release_of_what_was_removed_by_force_does_not_claim_to_have_freed_it(self, backend):
        mine = an_ask("video:1")
        backend.acquire(mine)
        backend.remove("video:1")
        with connection.execute_wrapper(Interference("UPDATE", raising(OperationalError), after=True)):
            assert backend.release("video:1", mine.token) is Released.GONE

    def test_renewals_and_extensions_are_repeated(self, backend):
        mine = an_ask("video:1", ttl=5000)
        backend.acquire(mine)
        with connection.execute_wrapper(Interference("UPDATE", raising(OperationalError), after=True)):
            assert backend.renew([Renewal("video:1", mine.token, 60_000)]) == [RenewalResult.RENEWED]
        with connection.execute_wrapper(Interference("UPDATE", raising(OperationalError), after=True)):
            assert backend.extend("video:1", mine.token, 60_000, 60_000) is True


class TestConnections:
    def test_a_session_that_the_server_ended_is_replaced(self, backend):
        mine = an_ask("video:1")
        backend.acquire(mine)
        identify, end = {
            "postgresql": ("SELECT pg_backend_pid()", "SELECT pg_terminate_backend({})"),
            "mysql": ("SELECT CONNECTION_ID()", "KILL {}"),
            "sqlite": ("SELECT 1", "SELECT {}"),  # nothing can end it
        }[connection.vendor]
        with connection.cursor() as cursor:
            cursor.execute(identify)
            (number,) = cursor.fetchone()

        def end_it():
            with connection.cursor() as cursor:
                cursor.execute(end.format(number))

        elsewhere(end_it)
        assert backend.renew([Renewal("video:1", mine.token, 60_000)]) == [RenewalResult.RENEWED]

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

    def test_a_verb_in_the_thread_of_an_event_loop_leaves_no_connection_open(self, backend, monkeypatch):
        closed = []
        kind = type(connections["default"])
        close = kind.close
        monkeypatch.setattr(kind, "close", lambda self: (closed.append(threading.current_thread()), close(self)))

        async def main():
            assert backend.records() == []

        asyncio.run(main())
        assert closed
        assert threading.current_thread() not in closed

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

    @pytest.mark.parametrize("way", ["released", "left to lapse"])
    def test_old_rows_go_faster_than_new_ones_come(self, backend, monkeypatch, way):
        """However many names there are a second. It was 200 rows in ten minutes."""
        monkeypatch.setattr(purging, "EVERY", 8)
        old, new = 60, 48
        for number in range(old):
            LockRow.objects.create(key=f"old:{number}", name="old", expires_at=-1 if way == "released" else 1)
        for number in range(new):
            mine = an_ask(f"video:{number}")
            backend.acquire(mine)
            if way == "released":
                backend.release(mine.name, mine.token)
        assert not LockRow.objects.filter(name="old").exists()
        assert LockRow.objects.count() == new

    def test_a_purge_that_fails_does_not_fail_the_release(self, backend):
        mine = an_ask("video:1")
        backend.acquire(mine)
        backend.purging.rows = purging.EVERY
        with connection.execute_wrapper(Interference("SELECT", raising(IntegrityError), after=False)):
            assert backend.release("video:1", mine.token) is Released.RELEASED

    @pytest.mark.django_db(transaction=False)
    def test_a_test_case_that_counts_statements_counts_no_purge(self, backend):
        mine = an_ask("video:1")
        backend.acquire(mine)
        backend.purging.rows = 10 * purging.EVERY
        with CaptureQueriesContext(connection) as captured:
            backend.release("video:1", mine.token)
        assert [query["sql"].split()[0] for query in captured if "tasklock_lock" in query["sql"]] == ["UPDATE"]

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

    def test_the_fence_goes_on_after_its_row_was_purged(self, backend):
        mine = an_ask("video:1")
        before = granted(backend.acquire(mine)).fence
        backend.release("video:1", mine.token)
        self.age("video:1", expires_at=-1)
        started = time.time()
        assert backend.purge() == 1
        eventually(lambda: time.time() > started + 0.002)
        assert granted(backend.acquire(an_ask("video:1"))).fence > before


def test_the_clock_is_that_of_the_database_in_milliseconds_since_1970():
    LockRow.objects.create(key="k", name="n")
    before = int(time.time() * 1000)
    (now,) = LockRow.objects.annotate(now=Now()).values_list("now", flat=True)
    assert isinstance(now, int)
    assert before - 5000 < now < time.time() * 1000 + 5000
