"""A claim is committed before its body and closed before its lock is free, whatever the database or a signal does."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager, suppress

import pytest
from django.db import DatabaseError, OperationalError, connection, connections, transaction
from django.db.models.query import QuerySet

from django_tasklock import (
    Claim,
    GuardRejected,
    StaleClaim,
    StateGuard,
    TaskLock,
    current_claim,
    model_lock,
)
from django_tasklock.exceptions import TransactionOpen
from django_tasklock.guards import writes as writes_module
from django_tasklock.signals import claim_rejected, claim_stale, lock_released, state_changed
from tests.support.guards import (
    AGAIN,
    GUARD,
    ONCE,
    answer_lost,
    database_hangs_up,
    elsewhere,
    heard,
    states,
    take,
)
from tests.support.struck import STRIKES, struck_end
from tests.support.twins import thread_of
from tests.testapp.models import Note, PlainVideo, Trailer, Video

pytestmark = [pytest.mark.database, pytest.mark.django_db(transaction=True), pytest.mark.tasklock("memory")]

both = pytest.mark.parametrize("model", [Video, PlainVideo])


def locked_body(model, body, guard: StateGuard = GUARD, **options):
    """A decorated function of one argument that runs ``body(claim)``."""

    @model_lock(model, "claim-databases:{pk}", pk="pk", guard=guard, **options)
    def work(pk):
        return body(current_claim())

    return work


@contextmanager
def down():
    """The database answers no statement of this thread."""

    def refuse(execute, sql, params, many, context):
        raise OperationalError("the database system is shutting down")

    with connection.execute_wrapper(refuse):
        yield


@contextmanager
def without_autocommit():
    """As a caller has it who commits by hand."""
    transaction.set_autocommit(False)
    try:
        yield
        transaction.commit()
    finally:
        transaction.set_autocommit(True)


@contextmanager
def at_commit(strike, *, after=True):
    """The first commit of this thread is followed by ``strike()``, which raises; or there is only that."""
    plain, struck = type(connections["default"])._commit, []

    def commit():
        if after or struck:
            plain(connections["default"])
        if not struck:
            struck.append(True)
            strike()

    connections["default"]._commit = commit
    try:
        yield
    finally:
        del connections["default"]._commit


def seen(row):
    """What another connection sees of the row: only what is committed."""
    return elsewhere(lambda: type(row).objects.values_list("status", "progress").get(pk=row.pk))


class TestTransactions:
    @both
    @pytest.mark.parametrize("error", [None, ValueError])
    def test_it_is_committed_before_the_body_runs_and_its_end_before_the_lock_is_free(self, model, error):
        """Gold standard 8.6: the next holder sees what the last one did."""
        row = model.objects.create()
        found = []

        def body(claim):
            found.append(seen(row))
            if error:
                raise error

        def released(**details):
            found.append(seen(row))

        lock_released.connect(released)
        try:
            with suppress(ValueError):
                locked_body(model, body)(row.pk)
        finally:
            lock_released.disconnect(released)
        assert found == [("processing", 0), ("failed" if error else "ready", 0)]

    @both
    @pytest.mark.parametrize("how", ["atomic", "autocommit off"])
    def test_inside_one_it_is_refused_and_the_callers_work_is_not_lost(self, model, how):
        row = model.objects.create()
        work = locked_body(model, lambda claim: pytest.fail("the body ran"))
        with transaction.atomic() if how == "atomic" else without_autocommit():
            other = model.objects.create(status="kept")
            with pytest.raises(TransactionOpen) as caught:
                work(row.pk)
            assert not TaskLock(f"claim-databases:{row.pk}").locked()
        message = str(caught.value)
        where = "inside an open transaction" if how == "atomic" else "with autocommit off"
        assert message.startswith(f"cannot claim testapp.{model.__name__} {row.pk} {where}")
        words = (
            ("until commit", "delay_on_commit", "ATOMIC_REQUESTS", "eagerly")
            if how == "atomic"
            else ("delay_on_commit",)
        )
        assert all(word in message for word in words)
        assert seen(row) == ("uploading", 0)
        assert seen(other) == ("kept", 0), "the caller's own work is its own"

    def test_a_write_joins_a_transaction_that_the_body_has_opened(self):
        video = Video.objects.create()
        claim = take(video)
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            claim.update(progress=40)
            raise ZeroDivisionError
        assert seen(video) == ("processing", 0)
        with without_autocommit():
            Note.objects.create(video=video, text="kept")
            claim.update(progress=50)
            with claim.transaction():
                claim.update(progress=60)
        assert seen(video) == ("processing", 60)
        assert Note.objects.count() == 1

    def test_a_signals_receiver_may_write_although_the_claim_was_refused(self):
        video = Video.objects.create()
        stale, _ = take(video), take(video)

        def note(**details):
            Note.objects.create(video=video, text="told")

        claim_stale.connect(note)
        try:
            with pytest.raises(StaleClaim), stale.transaction():
                pass
        finally:
            claim_stale.disconnect(note)
        assert elsewhere(Note.objects.count) == 1


@pytest.mark.django_db(transaction=False)
class TestTestCase:
    """In a ``TestCase``, which is one transaction, everything works but the commits."""

    @both
    def test_a_whole_call(self, model):
        row = model.objects.create()

        def body(claim):
            assert connection.in_atomic_block
            claim.update(progress=40)
            with claim.transaction():
                claim.update(progress=50)
            return "done"

        work = locked_body(model, body)
        assert work(row.pk) == "done"
        assert states(row)[:2] == ("ready", 50)
        assert work(row.pk)["reason"] == "invalid_state"

    def test_a_transaction_of_the_codes_own_is_still_refused(self):
        video = Video.objects.create()
        work = locked_body(Video, lambda claim: pytest.fail("the body ran"))
        with transaction.atomic(), pytest.raises(TransactionOpen):
            work(video.pk)
        assert states(video) == ("uploading", 0, 0)


class TestHangUps:
    """The server drops the connection; nobody notices before the next query."""

    @both
    def test_before_the_claim(self, model, caplog):
        row = model.objects.create()
        with database_hangs_up():
            claim = take(row, ONCE)
        assert states(row)[0] == "processing"
        claim.finish()
        assert [(record.levelname, record.name) for record in caplog.records] == [("WARNING", "django_tasklock")]
        assert "the database closed the connection, trying again" in caplog.text

    def test_in_a_transaction_of_the_bodys_it_fails_as_a_whole_and_is_not_stale(self):
        video = Video.objects.create()
        claim = take(video)
        with pytest.raises(OperationalError), transaction.atomic(), database_hangs_up():
            claim.update(progress=40)
        claim.finish()
        assert states(video) == ("ready", 0, 1)

    def test_twice_running_is_an_error_and_the_lock_is_free_again(self):
        video = Video.objects.create()
        work = locked_body(Video, lambda claim: pytest.fail("the body ran"))
        with down(), pytest.raises(OperationalError):
            work(video.pk)
        assert not TaskLock(f"claim-databases:{video.pk}").locked()
        assert states(video) == ("uploading", 0, 0)

    @both
    def test_a_closing_write_that_fails_never_hides_the_bodys_error(self, model, caplog):
        row = model.objects.create()
        with ExitStack() as stack, pytest.raises(ValueError, match="no such codec") as caught:

            def body(claim):
                stack.enter_context(down())
                raise ValueError("no such codec")

            locked_body(model, body)(row.pk)
        assert caught.value.__notes__ == ["its row was not marked: the database system is shutting down"]
        assert "could not be marked" in caplog.text
        assert states(row)[0] == "processing"
        assert not TaskLock(f"claim-databases:{row.pk}").locked()

    def test_a_closing_write_that_fails_after_a_success_is_the_error(self):
        video = Video.objects.create()
        with ExitStack() as stack, pytest.raises(OperationalError, match="shutting down"):
            locked_body(Video, lambda claim: stack.enter_context(down()))(video.pk)
        assert states(video) == ("processing", 0, 1)


class TestLostAnswers:
    """It was done, and the answer did not arrive. Gold standard 8.5, for the row."""

    @both
    @pytest.mark.parametrize("guard", [GUARD, ONCE])
    def test_to_the_claims_commit(self, model, guard):
        row = model.objects.create()
        with answer_lost("COMMIT") as lost, heard(claim_rejected) as told:
            claim = take(row, guard)
        assert lost == ["COMMIT"]
        assert told == []
        claim.update(progress=40)
        claim.finish()
        assert states(row)[:2] == ("ready", 40)

    @both
    @pytest.mark.parametrize(
        ("write", "state"),
        [
            (Claim.finish, "ready"),
            (Claim.fail, "failed"),
            (Claim.give_back, "uploading"),
            (lambda claim: claim.update(status="transcoding"), "transcoding"),
        ],
        ids=["finish", "fail", "give_back", "update"],
    )
    def test_to_a_write_of_the_state(self, model, write, state):
        row = model.objects.create()
        claim = take(row, ONCE)
        with answer_lost("UPDATE") as lost, heard(claim_stale) as told:
            write(claim)
        assert len(lost) == 1
        assert told == []
        assert states(row)[0] == state

    def test_to_a_closing_write_after_a_successor_has_closed_the_row_in_the_same_state(self):
        video = Video.objects.create()
        stale = take(video)
        take(video).finish()
        with answer_lost("UPDATE") as lost, pytest.raises(StaleClaim):
            stale.finish()
        assert len(lost) == 1

    def test_to_the_commit_of_one_who_was_overtaken_at_once(self):
        video = Video.objects.create()
        overtook = []

        def strike():
            overtook.append(elsewhere(lambda: take(video, AGAIN)))
            raise OperationalError("server closed the connection unexpectedly")

        with at_commit(strike), pytest.raises(GuardRejected):
            take(video, ONCE)
        assert overtook[0].valid
        assert states(video) == ("processing", 0, 2)

    @both
    @pytest.mark.parametrize("after", [True, False], ids=["after the commit", "instead of it"])
    def test_a_time_limit_that_strikes_at_the_commit_leaves_a_claimable_row(self, model, after):
        row = model.objects.create()
        work = locked_body(model, lambda claim: pytest.fail("the body ran"), ONCE)

        def strike():
            raise KeyboardInterrupt

        raised = pytest.raises((KeyboardInterrupt, DatabaseError))  # Django's, on its way out of the transaction
        with at_commit(strike, after=after), heard(claim_stale) as told, raised:
            work(row.pk)
        assert told == []
        assert states(row)[0] == "uploading"
        assert not TaskLock(f"claim-databases:{row.pk}").locked()

    @pytest.mark.parametrize("after", [True, False], ids=["after the write", "instead of it"])
    @pytest.mark.parametrize("error", [SystemExit, RuntimeError])
    @pytest.mark.parametrize("ends", ["ready", "failed"])
    def test_a_time_limit_that_strikes_as_the_row_is_closed_leaves_it_closed(self, after, error, ends):
        """``RuntimeError`` stands for ``SoftTimeLimitExceeded``."""
        row = Video.objects.create()
        struck = []

        def execute(execute, sql, params, many, context):
            closes = not struck and sql.startswith("UPDATE") and ends in params
            result = execute(sql, params, many, context) if after or not closes else None
            if closes:
                struck.append(sql)
                raise error
            return result

        def body(claim):
            assert claim.valid
            if ends == "failed":
                raise LookupError("the body's own")

        work = locked_body(Video, body, ONCE)
        raised = pytest.raises((error, LookupError) if ends == "failed" else error)
        with heard(claim_stale) as told, connection.execute_wrapper(execute), raised:
            work(row.pk)
        assert len(struck) == 1
        assert told == []
        assert states(row)[0] == ends
        assert not TaskLock(f"claim-databases:{row.pk}").locked()

    @pytest.mark.parametrize("how", ["_commit", "_rollback"])
    @pytest.mark.parametrize(("strike", "error"), STRIKES)
    def test_what_strikes_as_a_transaction_ends_leaves_no_transaction(self, how, strike, error):
        """Django's own error may hide it from the body."""
        row = Video.objects.create()
        claim = take(row)
        with struck_end(how, strike) as seen:
            with pytest.raises((error, DatabaseError)), claim.transaction():
                claim.update(progress=10)
                if how == "_rollback":
                    raise ZeroDivisionError
            assert seen == [how, "refused"]
            claim.update(progress=20)  # on a connection that is in no transaction, so it is seen
            assert elsewhere(lambda: states(row)[:2]) == ("processing", 20)
            claim.finish()
        assert states(row)[:2] == ("ready", 20)

    @pytest.mark.parametrize(("strike", "error"), STRIKES)
    def test_what_strikes_as_the_transaction_of_the_closing_write_ends_leaves_the_row_closed(self, strike, error):
        claim = take(Video.objects.create())
        with heard(state_changed), struck_end("_commit", strike) as seen, suppress(error):
            claim.finish()  # in a transaction, as there is somebody to be told
        assert seen == ["_commit", "refused"]
        assert states(Video.objects.get(pk=claim.pk))[0] == "ready"


class TestChangedRows:
    """MySQL without FOUND_ROWS counts the rows an UPDATE changed. Elsewhere that is acted."""

    @pytest.fixture(autouse=True)
    def _count_changes(self, monkeypatch):
        if connection.vendor == "mysql":
            monkeypatch.setitem(connection.settings_dict["OPTIONS"], "client_flag", 0)
            connection.close()
        else:
            monkeypatch.setattr(writes_module, "counts_changes", lambda connection: True)
            monkeypatch.setattr(QuerySet, "update", changes)
        yield
        connection.close()

    @both
    def test_writing_what_is_there_already_is_no_stale_write(self, model):
        row = model.objects.create(status="processing")
        with heard(claim_stale) as told:
            claim = take(row)
            claim.update(progress=0)
            with transaction.atomic():
                claim.update(progress=0)
            with claim.transaction():
                claim.update(progress=0)
            claim.give_back()
        assert told == []
        assert states(row)[:2] == ("processing", 0)

    def test_a_stale_write_of_what_is_there_already_is_stale(self):
        video = Video.objects.create()
        stale, fresh = take(video), take(video)
        for write in (lambda: stale.update(progress=0), stale.give_back):
            with pytest.raises(StaleClaim):
                write()
        fresh.update(progress=0)


def changes(queryset, **values):
    """``QuerySet.update`` that counts as MySQL does."""
    before = {row["id"]: row for row in queryset.values()}
    original_update(queryset, **values)
    after = {row["id"]: row for row in queryset.model._base_manager.filter(pk__in=before).values()}
    return sum(before[pk] != after[pk] for pk in after)


original_update = QuerySet.update


def set_option(monkeypatch, name, value):
    """Another entry in the database's OPTIONS, from the next connection on, also of other threads."""
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], name, value)
    connections["default"].__dict__.pop("isolation_level", None)
    connection.close()


@pytest.fixture
def _options_are_put_back(monkeypatch):
    yield
    monkeypatch.undo()
    connections["default"].__dict__.pop("isolation_level", None)
    connection.close()


@pytest.mark.usefixtures("_options_are_put_back")
class TestSnapshots:
    @staticmethod
    def isolate(monkeypatch, postgres, mysql=None):
        if connection.vendor == "postgresql":
            from django.db.backends.postgresql.psycopg_any import IsolationLevel

            set_option(monkeypatch, "isolation_level", IsolationLevel[postgres])
        elif connection.vendor == "sqlite":
            set_option(monkeypatch, "transaction_mode", "DEFERRED")
        elif mysql:
            set_option(monkeypatch, "isolation_level", mysql)

    def test_an_old_view_of_the_row_does_not_hide_that_it_was_taken(self, monkeypatch):
        """REPEATABLE READ, and SQLite's log, go on showing the row as it was when the transaction began."""
        self.isolate(monkeypatch, "REPEATABLE_READ", "repeatable read")
        video = Video.objects.create()
        claim = take(video)
        with pytest.raises((StaleClaim, OperationalError)), transaction.atomic():
            assert claim.valid
            elsewhere(lambda: take(video))
            assert claim.valid, "this is no old view"
            claim.update(progress=40)
        assert states(video) == ("processing", 0, 2)

    def test_a_take_over_that_commits_as_the_row_is_locked_is_seen(self, monkeypatch):
        """A snapshot cannot lock what was changed since: PostgreSQL answers with a serialization failure."""
        self.isolate(monkeypatch, "SERIALIZABLE")
        video = Video.objects.create()
        stale = take(video)
        overtook = []

        def execute(execute, sql, params, many, context):
            if not overtook and "UPDATE" in sql:
                if connection.vendor == "postgresql":  # which takes the snapshot with the first statement
                    context["cursor"].execute("SELECT 1 FROM testapp_video")
                overtook.append(elsewhere(lambda: take(video)))
            return execute(sql, params, many, context)

        told_of = pytest.raises(StaleClaim)
        with heard(claim_stale) as told, connection.execute_wrapper(execute), told_of, stale.transaction():
            pytest.fail("the row is another's")
        assert len(told) == 1
        assert overtook[0].valid


def test_a_fenced_transaction_where_the_base_manager_joins_what_may_be_missing():
    """PostgreSQL locks no rows of an outer join."""
    trailer = Trailer.objects.create()
    with take(trailer).transaction() as row:
        assert row == trailer


class TestTwoConnections:
    @pytest.fixture(autouse=True)
    def _sqlite_as_django_sets_it_up(self, monkeypatch, _options_are_put_back):
        """A transaction that takes the lock with its first write, not as it begins."""
        if connection.vendor == "sqlite":
            set_option(monkeypatch, "transaction_mode", "DEFERRED")

    @both
    def test_a_take_over_during_the_block_waits_for_its_commit(self, model):
        row, noted = model.objects.create(), Video.objects.create()
        claim = take(row)
        found = []

        def take_over():
            successor = take(row)
            found.append(Note.objects.count())
            successor.finish()

        with claim.transaction():
            other = thread_of(take_over)
            other.start()
            other.join(0.5)  # a take-over that does not wait is done by now
            assert other.is_alive()
            assert found == []
            Note.objects.create(video=noted, text="fenced")
            claim.update(progress=40)
        other.join(60)
        assert not other.is_alive()
        assert found == [1], "the successor sees what was done before it"
        assert states(row)[:2] == ("ready", 40)
        with pytest.raises(StaleClaim):
            claim.update(progress=50)
