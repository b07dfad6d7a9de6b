"""A message that waits in the table is put back once, as it was published, when it is its turn, whoever dies meanwhile.

Most of it runs in this process, step by step, so that others come exactly in between.
"""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Task, chord
from celery.canvas import Signature
from celery.worker.request import Request
from django.core.exceptions import ImproperlyConfigured
from django.db import connection
from django.db.models import F
from django.test.utils import CaptureQueriesContext
from kombu.exceptions import OperationalError

from django_tasklock import operations, task_lock
from django_tasklock.backends import get_backend
from django_tasklock.backends.database.names import key_of
from django_tasklock.celery import OnceTask, count_parked, parked_messages, receivers
from django_tasklock.celery.delivery import line
from django_tasklock.celery.queue import promoter as promotion, rows as table
from django_tasklock.celery.queue.ending import end_replaced
from django_tasklock.celery.queue.promoter import Promoter, promote
from django_tasklock.celery.queue.rows import session
from django_tasklock.celery.unique import seconds_until
from django_tasklock.exceptions import BackendUnavailable
from django_tasklock.models import ParkedMessage
from django_tasklock.operations.parked.acts import discard_parked
from django_tasklock.operations.parked.listing import ParkedQuery, list_parked
from django_tasklock.types import AcquireRequest, Grant
from tests.support.celery_site.courier import Courier, Killed
from tests.support.celery_site.queue_tasks import told
from tests.support.guards import answer_lost, elsewhere, new_token
from tests.support.once_app import once_app

pytest_plugins = ["tests.support.celery_site.fixtures"]
SITE_TASKS = ["tests.support.celery_site.once_tasks", "tests.support.celery_site.queue_tasks"]

pytestmark = [
    pytest.mark.quick,
    pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning"),  # by Celery's results
]

NAME = "hold:a"


@pytest.fixture
def courier(celery_site) -> Courier:
    return Courier(celery_site)


class Somebody:
    """Another process, on another machine. It does not know of parked messages."""

    def __init__(self, name: str = NAME) -> None:
        self.name = name
        self.token = new_token()

    def acquire(self) -> bool:
        request = AcquireRequest(self.name, self.token, 60_000, 60_000, '{"host": "elsewhere", "pid": 1}')
        return isinstance(get_backend().acquire(request), Grant)

    def release(self) -> None:
        get_backend().release(self.name, self.token)


@pytest.fixture
def holder(celery_site) -> Somebody:
    """Somebody has the lock."""
    somebody = Somebody()
    assert somebody.acquire()
    return somebody


def parked(site, courier, number=1, task="queued_hold", **options):
    """Messages that were published, delivered and parked behind the busy lock."""
    results = []
    for count in range(number):
        results.append(site.publish(task, "a", number=count, **options))
        courier.run()
    assert count_parked(NAME) >= number
    return results


def rows(*fields):
    return list(ParkedMessage.objects.order_by("number").values_list(*fields))


def age(seconds):
    """Let time pass for what is kept."""
    ParkedMessage.objects.update(changed_at=F("changed_at") - round(seconds * 1000))


def promoter(site):
    return Promoter(site.app)


def raising(error: BaseException) -> Any:
    def raise_it(*what: Any, **options: Any) -> None:
        raise error

    return raise_it


@pytest.fixture
def no_wake_up(monkeypatch):
    """Releases and parkers do not look; what is promoted was promoted by the test."""
    monkeypatch.setattr(line, "promote", lambda *what: False)


@pytest.mark.database
class TestInBetween:
    """Gold standard 8.27: a release between the decision to park and the parking."""

    def test_a_release_before_the_row_is_written(self, celery_site, courier, holder, monkeypatch):
        park = table.park

        def late(*what: Any, **options: Any) -> bool:
            holder.release()  # it looks for who waits, and sees nobody
            promote(NAME, celery_site.app)
            assert celery_site.waiting() == 0
            return park(*what, **options)

        result = celery_site.publish("queued_hold", "a")
        with monkeypatch.context() as patch:
            patch.setattr(table, "park", late)
            courier.run()
        assert rows("state", "sent") == [("promoted", 1)]
        courier.run()
        assert result.get(timeout=5)["status"] == "success"
        assert rows() == []

    def test_both_at_the_same_time(self, celery_site, courier, holder):
        """Whoever of two sees the row, one sends it: neither none nor both."""
        for _ in range(5):
            parked(celery_site, courier)
            together = threading.Barrier(2)

            def look(together=together):
                together.wait()
                return promote(NAME, celery_site.app)

            holder.release()
            with ThreadPoolExecutor(2) as threads:
                sent = list(threads.map(lambda _: elsewhere(look), range(2)))
            assert sorted(sent) == [False, True]
            assert celery_site.waiting() == 1
            courier.run()
            assert rows() == []
            assert holder.acquire()

    def test_a_newcomer_does_not_overtake(self, celery_site, courier, holder, no_wake_up):
        first, second = parked(celery_site, courier, 2)
        third = celery_site.publish("queued_hold", "a", number=2)
        holder.release()
        courier.run()  # the lock is free, but others wait for it
        assert [one.task_id for one in parked_messages(NAME)] == [first.id, second.id, third.id]
        for result in (first, second, third):
            assert promote(NAME, celery_site.app)
            courier.run()
            assert result.get(timeout=5)["status"] == "success"

    def test_one_waits_for_one_that_was_published_before_and_has_not_arrived(self, celery_site, courier, holder):
        first = celery_site.publish("queued_hold", "a")
        request = courier.take()
        [second] = parked(celery_site, courier)
        holder.release()
        assert not promote(NAME, celery_site.app)
        request.execute()
        courier.run()
        assert [one.task_id for one in celery_site.events("start")] == [first.id, second.id]

    def test_the_second_is_not_sent_while_the_first_is_on_its_way(self, celery_site, courier, holder):
        """Nor if nobody asks the store for the order any more: it may have been flushed."""
        parked(celery_site, courier, number=2)
        holder.release()
        ParkedMessage.objects.update(parked_at=0)
        assert promote(NAME, celery_site.app)
        assert not promote(NAME, celery_site.app)
        assert rows("state") == [("promoted",), ("parked",)]

    def test_a_promoted_message_that_finds_the_lock_busy_keeps_its_place(self, celery_site, courier, holder):
        first, second = parked(celery_site, courier, 2)
        holder.release()
        assert promote(NAME, celery_site.app)
        assert holder.acquire()
        courier.run()
        assert rows("task_id", "state", "sent") == [(first.id, "parked", 1), (second.id, "parked", 0)]
        holder.release()
        assert promote(NAME, celery_site.app)
        assert courier.run_all() == 2
        assert [one.task_id for one in celery_site.events("start")] == [first.id, second.id]


@pytest.mark.database
class TestSomebodyDies:
    def test_the_promoter_between_the_update_and_the_sending(self, celery_site, courier, holder, monkeypatch):
        """Gold standard 8.27 again: the wake-up is lost with its promoter; then the queue is purged."""
        [result] = parked(celery_site, courier)
        holder.release()
        with monkeypatch.context() as patch:
            patch.setattr(Signature, "apply_async", raising(Killed()))
            with pytest.raises(Killed):
                promote(NAME, celery_site.app)
        assert rows("state", "sent") == [("promoted", 1)]
        for patience in (promotion.PATIENCE, promotion.PATIENCE * 2):  # each time it is waited for twice as long
            assert courier.purge() == (patience > promotion.PATIENCE)
            age(patience - 1)
            assert promoter(celery_site).poll() == 0  # it may be on its way
            age(2)
            assert promoter(celery_site).poll() == 1
        courier.run()
        assert result.get(timeout=5)["status"] == "success"
        assert rows() == []

    def test_a_worker_before_the_result_is_stored(self, celery_site, courier, holder, monkeypatch):
        """A message that has begun has no row any more. The broker brings it back, and it is run again: a chord would
        wait for it for ever. Once its result is stored it is not."""
        [result] = parked(celery_site, courier, task="late_hold")
        holder.release()
        assert promote(NAME, celery_site.app)
        request = courier.take()
        with monkeypatch.context() as patch:
            patch.setattr(type(request.task.backend), "mark_as_done", raising(Killed()))
            with pytest.raises(Killed):
                request.execute()
        assert rows() == []
        request.message.delivery_info["redelivered"] = True
        for _ in range(2):
            Request(request.message, app=celery_site.app, hostname="again", decoded=False).execute()
            assert result.get(timeout=5)["status"] == "success"
            assert len(celery_site.events("start")) == 2

    def test_a_copy_that_was_put_back_by_mistake_does_not_run(self, celery_site, courier, holder):
        """A promoter thought it was lost: it was in a long queue."""
        [result] = parked(celery_site, courier, task="late_hold")
        holder.release()
        assert promote(NAME, celery_site.app)
        age(promotion.PATIENCE + 1)
        assert promoter(celery_site).poll() == 1
        first, second = courier.take(), courier.take()
        first.execute()
        assert celery_site.events("start") == []
        second.execute()
        assert result.get(timeout=5)["status"] == "success"
        second.execute()
        assert len(celery_site.events("start")) == 1
        assert rows() == []


class TestServersFail:
    def test_the_broker_is_down(self, celery_site, courier, holder, monkeypatch):
        [result] = parked(celery_site, courier)
        holder.release()
        with monkeypatch.context() as patch:
            patch.setattr(Signature, "apply_async", raising(OperationalError("down")))
            assert not promote(NAME, celery_site.app)
            assert rows("state") == [("parked",)]
        assert promote(NAME, celery_site.app)
        courier.run()
        assert result.get(timeout=5)["status"] == "success"

    def test_the_lock_store_is_down_and_then_has_forgotten_everything(self, celery_site, courier, holder):
        """Whoever was promoted promotes the next: it does not take a promoter's round for each."""
        results = parked(celery_site, courier, 2)
        celery_site.lock_store.kill()
        assert not promote(NAME, celery_site.app)
        with pytest.raises(BackendUnavailable):
            promoter(celery_site).poll()
        assert rows("state", "sent") == [("parked", 0)] * 2
        celery_site.lock_store.start()
        assert promoter(celery_site).poll() == 1
        courier.run_all()
        assert [one.get(timeout=5)["status"] for one in results] == ["success"] * 2
        assert [one.task_id for one in celery_site.events("start")] == [one.id for one in results]

    def test_the_database_goes_down_when_it_is_parked(self, celery_site, courier, holder, monkeypatch):
        """It was sent again and put back, and ran twice; or it failed, and ran after that."""
        result = celery_site.publish("coalescing_hold", "a")
        request = courier.take()
        work = table.has_newer

        def once_parked(*what: Any) -> Any:
            return raising(BackendUnavailable("down"))() if rows() else work(*what)

        with monkeypatch.context() as patch:
            patch.setattr(table, "has_newer", once_parked)
            request.execute()
        assert rows("state") == [("parked",)]
        assert celery_site.waiting() == 0
        holder.release()
        age(promotion.PATIENCE + 1)
        assert promoter(celery_site).poll() == 1
        courier.run()
        assert result.get(timeout=5)["status"] == "success"
        assert rows() == []

    @pytest.mark.parametrize("error", [BackendUnavailable("down"), ImproperlyConfigured("no table: migrate")])
    def test_the_table_cannot_be_asked(self, celery_site, courier, holder, monkeypatch, error):
        """F45: a project that has not migrated yet: the broker keeps the message."""
        result = celery_site.publish("queued_hold", "a")
        with monkeypatch.context() as patch:
            patch.setattr(session, "run", raising(error))
            courier.run()
        assert result.state == "RETRY"
        holder.release()
        courier.run()
        assert result.get(timeout=5)["status"] == "success"

    def test_no_database_for_a_message_that_comes_again_and_is_not_parked(self, celery_site, courier, monkeypatch):
        """It runs: only what is to be parked needs a table."""
        result = celery_site.publish("once_hold", "a")
        with monkeypatch.context() as patch:
            patch.setattr(session, "run", raising(ImproperlyConfigured("no DATABASES")))
            courier.run(redelivered=True)
        assert result.get(timeout=5)["status"] == "success"


class TestLimit:
    def test_it_refuses_at_the_limit(self, celery_site, courier, holder):
        """Whoever waits counts, also one that has no limit itself."""
        results = [celery_site.publish(task, "a") for task in ("short_queue", "queued_hold", *["short_queue"] * 2)]
        for _ in results:
            courier.run()
        assert [result.state for result in results] == ["PENDING"] * 3 + ["FAILURE"]
        with pytest.raises(Exception, match="3 messages are parked for it, its queue_limit"):
            results[3].get(timeout=5)
        holder.release()
        promote(NAME, celery_site.app)
        assert holder.acquire()
        courier.run()  # it waited before: it is not refused
        assert rows("task_id", "state")[0] == (results[0].id, "parked")

    @pytest.mark.database
    @pytest.mark.django_db(transaction=True)
    def test_two_see_the_same_last_place(self, monkeypatch):
        """Both looked before either was there."""
        free_place, together = table._free_place, threading.Barrier(2)

        def both_looked(*what):
            place = free_place(*what)
            if place is not None:
                together.wait(10)
            return place

        monkeypatch.setattr(table, "_free_place", both_looked)

        def park(task_id):
            return elsewhere(lambda: table.park("n", 1, "queue", "a.task", task_id, "{}", limit=1))

        with ThreadPoolExecutor(2) as threads:
            assert sorted(threads.map(park, "ab")) == [False, True]
        assert table.count("n") == 1


class TestListing:
    def test_what_waits(self, celery_site, courier, holder):
        results = parked(celery_site, courier, 2)
        strange = "hold:\N{SNOWMAN} ä"
        assert Somebody(strange).acquire()
        celery_site.publish("coalescing_hold", strange.removeprefix("hold:"))
        courier.run()
        assert count_parked() == 3
        assert count_parked(f"task_lock:{strange}") == 1  # the name may bear the prefix, as that of every lock
        found = parked_messages()
        assert [(one.name, one.mode) for one in found] == [(NAME, "queue")] * 2 + [(strange, "coalesce")]
        assert [one.task_id for one in parked_messages(NAME, limit=1, offset=1)] == [results[1].id]
        assert (found[0].task.rpartition(".")[2], found[0].state) == ("queued_hold", "parked")
        assert 0 <= found[0].waited < 60
        assert found[0].parked_at.tzinfo is not None

    @pytest.mark.database
    @pytest.mark.django_db
    @pytest.mark.parametrize("text", ["a\0b", "\udce9"], ids=["NUL", "surrogate"])
    def test_what_no_column_can_have_is_no_outage(self, text):
        """It comes with the address of a page, and from a terminal of another encoding."""
        assert discard_parked(text, by=operations.Actor("who")).why == "there is no such message"
        assert not list_parked(ParkedQuery(text=text)).messages
        assert not list_parked(ParkedQuery(ids=(text, "id-1"))).messages
        assert parked_messages(text) == []
        assert count_parked(text) == 0


class TestWhatIsKept:
    """A message that waited is the message that was published."""

    def run_it(self, site, courier, holder, queue="", **options):
        result = site.publish("counting_queue", "a", **options)
        courier.run(queue)
        assert rows("task_id", "state") == [(result.id, "parked")]
        holder.release()
        assert promote(NAME, site.app)
        return result, courier.take(queue)

    def test_headers_limits_priority_and_queue(self, celery_site, courier, holder):
        options = {
            "headers": {"tenant": "x"},
            "priority": 3,
            "queue": celery_site.queue("side"),
            "time_limit": 50,
            "soft_time_limit": 40,
            "countdown": 0.1,
            "expires": 1000,
        }
        result, request = self.run_it(celery_site, courier, holder, queue="side", options=options, number=7)
        assert request.message.properties["priority"] == 3
        assert request.expires is not None
        assert request.eta is None  # a countdown is not counted again
        request.execute()
        assert result.get(timeout=5)["status"] == "success"
        [seen] = celery_site.events("request")
        assert seen.more["headers"] == {"tenant": "x"}
        assert seen.more["queue"] == celery_site.queue("side")
        assert seen.more["limits"] == [50, 40]
        assert (seen.more["kwargs"], seen.more["retries"]) == ("{'number': 7}", 0)
        assert request.id == result.id

    def test_links_chains_and_chords(self, celery_site, courier, holder):
        task = celery_site.task("counting_queue")
        chord([(task.si("a") | told.s("chain"))], told.s("chord")).apply_async()
        courier.run()
        assert count_parked(NAME) == 1
        holder.release()
        assert promote(NAME, celery_site.app)
        assert courier.run_all() == 3
        assert [one.key for one in celery_site.events("told")] == ["chain", "chord"]

    @pytest.mark.parametrize("kept", ["parked", "postponed"])
    def test_what_only_its_own_serializer_can_carry(self, celery_site, courier, holder, monkeypatch, kept):
        """F45: published in one that the task does not use by itself, it failed when its lock was busy."""
        celery_site.configure(accept_content=["json", "pickle"])
        result = celery_site.publish("counting_queue", "a", number={"a"}, options={"serializer": "pickle"})
        with monkeypatch.context() as patch:
            if kept == "postponed":
                patch.setattr(session, "run", raising(BackendUnavailable("down")))
            courier.run()
        assert result.state == ("PENDING" if kept == "parked" else "RETRY")
        holder.release()
        if kept == "parked":
            assert promote(NAME, celery_site.app)
        request = courier.run()
        assert request.message.content_type == "application/x-python-serialize"
        assert celery_site.events("request")[0].more["kwargs"] == "{'number': {'a'}}"

    def test_one_that_has_expired_is_not_sent(self, celery_site, courier, holder, monkeypatch):
        """RabbitMQ drops it without a word, and the others would wait for it."""
        [expired] = parked(celery_site, courier, options={"expires": 1000})
        [other] = parked(celery_site, courier)
        holder.release()
        monkeypatch.setattr(promotion, "seconds_until", lambda when: when and seconds_until(when) - 1000)
        assert promote(NAME, celery_site.app)
        assert celery_site.waiting() == 1
        assert expired.state == "REVOKED"
        courier.run()
        assert other.get(timeout=5)["status"] == "success"
        assert rows() == []


@pytest.mark.database
class TestNewest:
    """``coalesce``, step by step."""

    def test_one_that_starts_at_once_replaces_what_was_promoted(self, celery_site, courier, holder, no_wake_up):
        [older] = parked(celery_site, courier, task="coalescing_hold")
        holder.release()
        newer = celery_site.publish("coalescing_hold", "a", number="newer")
        late = courier.take()
        assert promote(NAME, celery_site.app)
        late.execute()
        courier.run_all()
        assert newer.get(timeout=5)["status"] == "success"
        assert older.get(timeout=5)["reason"] == "coalesced"
        assert [one.more for one in celery_site.events("start")] == [{"number": "newer"}]
        assert rows() == []

    @pytest.mark.parametrize("error", [Killed(), OSError("no result store")], ids=["killed", "down"])
    def test_its_result_is_stored_later_if_that_fails(self, celery_site, courier, holder, monkeypatch, error):
        """Neither a kill between the two nor an outage leaves its caller waiting; and it holds nobody up."""
        [older] = parked(celery_site, courier, task="coalescing_hold")
        newer = celery_site.publish("coalescing_hold", "a")
        request = courier.take()
        with monkeypatch.context() as patch:
            patch.setattr(type(request.task.backend), "mark_as_done", raising(error))
            with suppress(Killed):
                request.execute()
        if isinstance(error, Killed):
            request.execute()  # the broker delivers it again
        assert rows("task_id", "mode") == [(older.id, "replaced"), (newer.id, "coalesce")]
        holder.release()
        assert promoter(celery_site).poll() == 1
        courier.run()
        assert newer.get(timeout=5)["status"] == "success"
        age(promotion.PATIENCE * 2)
        assert promoter(celery_site).poll() == 0
        assert older.get(timeout=5)["reason"] == "coalesced"
        assert celery_site.waiting() == 0
        assert rows() == []

    def test_replaced_between_its_look_and_its_start(self, celery_site, courier, holder, monkeypatch):
        [result] = parked(celery_site, courier, task="coalescing_hold")
        holder.release()
        assert promote(NAME, celery_site.app)
        request = courier.take()
        take_out = table.remove_unchanged

        def late(row: Any) -> bool:
            end_replaced([row], celery_site.app)
            return take_out(row)

        with monkeypatch.context() as patch:
            patch.setattr(table, "remove_unchanged", late)
            request.execute()
        assert result.get(timeout=5)["reason"] == "coalesced"
        assert celery_site.events("start") == []
        assert rows() == []

    @pytest.mark.parametrize("busy", [False, True])
    def test_an_older_one_that_arrives_after_a_newer_one(self, celery_site, courier, busy):
        """The newer one has run, or waits."""
        somebody = Somebody()
        assert not busy or somebody.acquire()
        older = celery_site.publish("coalescing_hold", "a", number="older")
        request = courier.take()
        newer = celery_site.publish("coalescing_hold", "a", number="newer")
        courier.run()
        request.execute()
        assert older.get(timeout=5)["reason"] == "coalesced"
        assert [one.task_id for one in parked_messages(NAME)] == ([newer.id] if busy else [])
        assert [one.more for one in celery_site.events("start")] == ([] if busy else [{"number": "newer"}])


@pytest.mark.parametrize(
    ("base", "run", "looks"), [(Task, print, False), (OnceTask, print, True), (Task, task_lock("a")(print), True)]
)
def test_a_worker_looks_after_messages_if_one_of_its_tasks_may_park_any(monkeypatch, base, run, looks):
    started: list[Promoter] = []
    monkeypatch.setattr(Promoter, "start", lambda promoter: started.append(promoter))
    task = type("One", (base,), {"name": "one", "run": staticmethod(run)})()
    receivers.start_promoting(SimpleNamespace(app=SimpleNamespace(tasks={"one": task})))
    receivers.stop_promoting()
    assert len(started) == looks


@pytest.mark.redis
@pytest.mark.django_db(transaction=True)
def test_what_is_not_due_yet_delays_nobody():
    with once_app() as app:
        task = app.task(key="not due yet", on_conflict="queue")
        task.apply_async(countdown=60)
        app.take()
        task.delay()
        assert app.run() == ("SUCCESS", "ran")


@pytest.mark.database
@pytest.mark.django_db(transaction=True)
class TestTable:
    """The rows themselves, on every database."""

    def park(self, task_id, number=1, mode="queue"):
        assert table.park("n", number, mode, "a.task", task_id, "a message")
        row = table.find(task_id)
        assert row is not None
        return row

    def test_one_row_for_a_message(self):
        self.park("a")
        self.park("a")
        assert rows("task_id", "state") == [("a", "parked")]

    def test_the_newest_of_coalesce_is_the_head(self):
        for number, task_id in enumerate("abc"):
            self.park(task_id, number, mode="coalesce")
        self.park("d", 4)
        head = table.read_next(key_of("n"))[0]
        assert head is not None
        assert head.task_id == "c"
        assert sorted(one.task_id for one in table.find_older(head.key, 2, "c")) == ["a", "b"]
        assert [one.task_id for one in table.find_older(head.key, 1, "b")] == ["a"]

    def test_of_several_that_move_a_row_one_does(self):
        row, together = self.park("a"), threading.Barrier(4)

        def move():
            together.wait()
            return table.move(row, "promoted", sent=1)

        with ThreadPoolExecutor(4) as threads:
            moved = list(threads.map(lambda _: elsewhere(move), range(4)))
        assert moved.count(True) == 1

    def test_an_answer_is_lost(self):
        """What was done is done, and not somebody else's work."""
        row = self.park("a")
        with answer_lost("DELETE") as lost:
            assert table.remove_unchanged(row)
        assert len(lost) == 1
        assert not table.remove_unchanged(row)

    def test_no_query_reads_the_whole_line(self):
        """Gold standard 8.25: 5,000 that conflict and one that does not."""
        key, free = key_of("n"), key_of("free")
        ParkedMessage.objects.bulk_create(
            [
                ParkedMessage(
                    key=key if number else free, name="n", number=number, mode="queue", state="parked", task="a.task",
                    task_id=str(number), message="{}" * 200, parked_at=1, changed_at=1,
                )
                for number in range(5_001)
            ],
            batch_size=2000,
        )  # fmt: skip
        analyze = {"sqlite": "ANALYZE", "mysql": "ANALYZE TABLE tasklock_parked"}
        with connection.cursor() as cursor:
            cursor.execute(analyze.get(connection.vendor, "ANALYZE tasklock_parked"))
        with CaptureQueriesContext(connection) as queries:
            head = table.read_next(key)[0]
            assert head is not None
            assert head.task_id == "1"
            assert [table.has_older("n", number) for number in (1, 2_500, 5_000)] == [False, True, True]
            assert [table.has_newer("n", number) for number in (1, 5_000)] == [True, False]
            assert {table.next_key(""), table.next_key(min(key, free))} == {key, free}
            assert table.next_key(max(key, free)) is None
            assert table.find("700") is not None
            assert table.read_next(free)[0] is not None
            self.park("one more", 30_000)
        assert reads(queries) == []


def reads(queries):
    """The queries that look at more than a few rows, as the database's own plan says."""
    bad = []
    with connection.cursor() as cursor:
        for query in queries.captured_queries:
            sql = query["sql"]
            if not sql.startswith(("SELECT", "UPDATE")) or "tasklock_parked" not in sql:
                continue
            if connection.vendor == "postgresql":
                cursor.execute("BEGIN")
                cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}")
                [(plan,)] = cursor.fetchall()
                cursor.execute("ROLLBACK")
                most = most_rows(json.loads(plan)[0]["Plan"] if isinstance(plan, str) else plan[0]["Plan"])
                if most > 200:
                    bad.append((most, sql[:300]))
            elif connection.vendor == "sqlite":
                cursor.execute(f"EXPLAIN QUERY PLAN {sql}")
                steps = [row[3] for row in cursor.fetchall()]
                if any(step.startswith("SCAN") and "CONSTANT" not in step and "USING" not in step for step in steps):
                    bad.append((steps, sql[:300]))
    return bad


def most_rows(plan):
    """The most rows any step of a plan looked at."""
    here = plan["Actual Rows"] * plan["Actual Loops"] + plan.get("Rows Removed by Filter", 0)
    return max([here, *(most_rows(part) for part in plan.get("Plans", []))])
