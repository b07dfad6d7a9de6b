"""What an operator is shown is so: lists, one lock in every state and why it is in it, who waits, and who did what.

Gold standard 8.46: the explanation of every class of state.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone, translation

from django_tasklock import RateLimiter, TaskLock, TaskLockError, current_lock, model_lock, operations
from django_tasklock.backends import get_backend
from django_tasklock.backends.contract.lists import Query
from django_tasklock.backends.memory import advance
from django_tasklock.locks.holder import holder_json, message_json
from django_tasklock.models import AuditEntry
from django_tasklock.operations import (
    Actor,
    LockDetail,
    LockState,
    Outcome,
    Result,
    RowRef,
    acts,
    audit,
    count_locks,
    get_lock,
    list_locks,
    sweep,
)
from django_tasklock.operations.limits.rates import list_limits
from django_tasklock.types import AcquireRequest, Grant
from tests.support.guards import GUARD
from tests.support.messages import park
from tests.support.public import in_store, script, setting
from tests.support.rest import KEY, Api, problem, url
from tests.support.stores import an_ask, granted, stores
from tests.support.sweeping import dead_holder, hold
from tests.testapp.models import Video

pytest_plugins = ["tests.support.redis_fixtures", "tests.support.rest_fixtures"]
pytestmark = pytest.mark.django_db(transaction=True)
ME = Actor("me")


@pytest.fixture(params=stores("redis"))
def store(request, settings) -> Iterator[str]:
    """The name of the store in force, empty."""
    yield from in_store(request.param, settings)


in_both = pytest.mark.parametrize("store", stores("redis", "database"), indirect=True)


def sentences(detail: LockDetail) -> str:
    return " ".join(detail.explanation)


def test_a_project_without_a_database_has_its_locks_listed_released_and_swept(store):
    """What would be in one is left out."""
    said = script(
        f"""
from django.conf import settings
settings.configure(INSTALLED_APPS=["django_tasklock"], TASKLOCK={setting("redis")!r})
import django, logging
django.setup()
logging.disable()
from django.core.management import call_command
from django_tasklock import acquire_task_lock, is_task_locked
assert acquire_task_lock("without-database")
for act in ((), ("without-database",), ("--release", "without-database")):
    call_command("locks", *act)
assert not is_task_locked("without-database")
call_command("sweep_locks", pause=0)
""",
        DJANGO_SETTINGS_MODULE="",
    )
    for part in ("1 shown of 1 that are held", "its process runs", "was released", "0 things were repaired"):
        assert part in said, said


class TestList:
    def test_those_of_ended_processes(self, store):
        """They are counted, and a page of them has no other, whatever the order; nor one that a message has."""
        for number in range(3):
            granted(get_backend().acquire(an_ask(f"dead:{number}", ttl=60_000 + number * 1000, holder=dead_holder())))
        granted(get_backend().acquire(an_ask("message", holder=message_json("a.task", "an-id"))))
        granted(get_backend().acquire(an_ask("far")))
        with TaskLock("mine"):
            first = list_locks(Query(order="age", limit=2), dead=True)
            assert [lock.info.name for lock in first.locks] == ["dead:0", "dead:1"]
            assert (first.total, first.next) == (3, 2)
            rest = list_locks(Query(limit=2, offset=2), dead=True)
            assert [lock.info.name for lock in rest.locks] == ["dead:2"]
            assert (rest.total, rest.next) == (3, None)
            assert list_locks(Query(text="EAD:1"), dead=True).total == 1
            assert (count_locks().live, count_locks().dead) == (6, 3)

    @in_both
    def test_a_short_lease_is_not_always_expiring(self, store, settings):
        for lease, state in ((6, LockState.LIVE), (60, LockState.EXPIRING)):
            settings.TASKLOCK = {**settings.TASKLOCK, "LEASE": lease}
            if lease == 6:
                hold("6", ttl=6000)
            assert list_locks().locks[0].state is state
            assert len(list_locks(Query("expiring")).locks) == count_locks().expiring == (state is LockState.EXPIRING)

    @in_both
    def test_a_paused_limiter_comes_first(self, store, settings):
        names = [f"idle:{number:02}" for number in range(40)]
        settings.TASKLOCK = {**settings.TASKLOCK, "RATE_LIMITS": dict.fromkeys(names, "5/h")}
        RateLimiter("zfull", "1/h").acquire()
        RateLimiter("zopen", "9/h").acquire()
        RateLimiter("zpaused", "9/h").penalize(600)
        assert [view.name for view in list_limits(limit=3).limits][:2] == ["zpaused", "zfull"]
        assert len(list_limits(offset=40, limit=50).limits) == 3


class TestStates:
    @pytest.mark.parametrize(
        ("holder", "alive", "told"),
        [
            (holder_json, True, ["its process runs", "If its holder dies it is free within"]),
            (lambda: '{"host":"far","pid":7,"proc":"x.1:2"}', None, ["cannot be seen from here"]),
            (dead_holder, False, ["has ended without giving it back", "if it is not swept or released before"]),
            (lambda: message_json("a.task", "an-id"), None, ["message of its task that is on its way"]),
        ],
        ids=["live", "far", "dead", "message"],
    )
    def test_by_its_holder(self, store, holder, alive, told):
        granted(get_backend().acquire(an_ask("video:1", holder=holder())))
        detail = get_lock("video:1")
        assert (detail.lock.state, detail.lock.alive) == (LockState.LIVE, alive)
        for part in told:
            assert part in sentences(detail)

    @pytest.mark.parametrize("store", stores("memory"), indirect=True)
    def test_overdue(self, store):
        granted(get_backend().acquire(an_ask("video:1", ttl=60_000, hold=10_000)))
        advance(20)
        assert "beyond its timeout" in sentences(get_lock("video:1"))

    def test_nobody_asks_a_dead_holder(self, store, rest, capsys):
        """In whichever way: it would not hear of it."""
        hold("6", dead_holder())
        by_key = Api(headers={"authorization": f"Api-Key {KEY}"})
        assert "has ended" in problem(by_key.post(url("6", "ask-release"), {}), 409, "nobody_to_ask")
        assert by_key.get(url("6")).json()["alive"] is False
        call_command("locks", no_color=True)
        assert capsys.readouterr().out.startswith("6: dead, ")
        with pytest.raises(CommandError, match="has ended"):
            call_command("locks", "--ask", "6")
        with pytest.raises(TaskLockError, match="release the lock, or sweep"):
            operations.ask_release("6", by=ME)
        assert acts("6") == []


class TestRow:
    def test_both_sides(self, store):
        """Of the lock in the list and on its page; and as JSON, without the token."""
        video = Video.objects.create()
        seen = []

        @model_lock(Video, "film:{pk}", pk="pk", guard=GUARD)
        def work(pk: int) -> None:
            park(1, f"film:{pk}")
            park(2, f"film:{pk}")
            seen.extend([list_locks().locks, get_lock(current_lock().name), current_lock().token])

        work(video.pk)
        [lock], detail, token = seen
        assert (lock.info.name, lock.state, lock.parked, lock.alive) == (f"film:{video.pk}", LockState.LIVE, 2, True)
        assert lock.row == detail.row.ref == RowRef("testapp.video", str(video.pk))
        row = detail.row
        assert (row.exists, row.field, row.state, row.epoch, row.fenced) == (True, "status", "processing", 1, True)
        assert row.agrees
        assert row.fingerprint == detail.lock.info.fingerprint
        assert row.states[0] == GUARD.retry
        assert "failed" in row.states
        assert "claimed by this holder" in sentences(detail)
        document = operations.to_plain(detail)
        assert token not in json.dumps(document)
        assert document["lock"]["acquired_at"].endswith("Z")
        assert document["lock"]["row"] == {"model": "testapp.video", "pk": str(video.pk), "lookup": "pk"}
        assert document["row"].items() >= {"pk": str(video.pk), "agrees": True}.items()

    def test_of_another_claim_or_of_which_nothing_is_known(self, store):
        GUARD.register(Video)
        video = Video.objects.create(lock_token="0" * 32, status="processing")
        for number, (row, sentence) in enumerate(
            [
                (f"testapp.video:{video.pk}", "claimed by another"),
                ("testapp.video:987654", "does not exist any more"),
                ("testapp.video:not-a-number", "knows no guard"),
                ("nowhere.film:1", "knows no guard"),
            ]
        ):
            granted(get_backend().acquire(an_ask(f"film:{number}", holder=holder_json(row=row))))
            detail = get_lock(f"film:{number}")
            assert sentence in sentences(detail)
            assert detail.row is None or not detail.row.agrees


@pytest.mark.parametrize("outcome", Outcome)
@pytest.mark.parametrize("fenced", [True, False])
def test_results_say_what_was_done(outcome: Outcome, fenced: bool) -> None:
    result = Result("a", outcome, fenced=fenced, alive=False)
    assert bool(result) is (outcome in ("released", "asked"))
    assert "“a”" in str(result)
    assert ("Its process has ended." in str(result)) is (outcome is Outcome.RELEASED)
    assert ("row" in str(result)) is fenced
    with translation.override("zh-hans"):
        assert "“a”" in str(result)
        assert "The " not in str(result)


@pytest.mark.parametrize("store", stores("redis", "memory"), indirect=True)
def test_who_waits_in_order(store: str) -> None:
    """Who, since when by the store's clock, which task; the rest is counted. Of stores that have a queue."""

    def ask(number: int) -> AcquireRequest:
        known = f'{{"host":"far","pid":{number},"boot":"b{number}","task":"videos.process","task_id":"id-{number}"}}'
        return an_ask("a", f"{number:032x}", holder=known)

    granted(get_backend().acquire(ask(1)))
    waiters = [get_backend().waiter(ask(number)) for number in (3, 2, 4)]
    try:
        for waiter in waiters:
            assert not isinstance(waiter.acquire(), Grant)
        page = operations.list_waiters("a")
        assert [one.task_id for one in page.waiters] == ["id-3", "id-2", "id-4"]
        assert (page.total, page.known) == (3, True)
        first = page.waiters[0]
        assert first.holder == "far:3 (videos.process[id-3])"
        assert (first.task, first.present) == ("videos.process", True)
        assert abs(first.since.timestamp() - time.time()) < 30
        assert (len(operations.list_waiters("a", 2).waiters), operations.list_waiters("a", 2).total) == (2, 3)
    finally:
        for waiter in waiters:
            waiter.leave()
    assert operations.list_waiters("a").waiters == []


class TestTheAuditTrail:
    @pytest.mark.parametrize(
        ("days", "left"), [(365, ["1", "29", "31"]), (30, ["1", "29"]), (None, ["1", "29", "31", "400", "500"])]
    )
    def test_the_sweep_lets_it_stay_so_long(self, store, settings, monkeypatch, days: Any, left: list[str]):
        for age in (1, 29, 31, 400, 500):
            at = timezone.now() - timedelta(days=age)
            AuditEntry.objects.create(at=at, actor="a", action="release", key="k", name=str(age))
        monkeypatch.setattr(audit, "BATCH_SIZE", 1)
        if days != 365:  # which is the default
            settings.TASKLOCK = {**settings.TASKLOCK, "AUDIT_DAYS": days}
        sweep(pause=0, dry_run=True)
        sweep(pause=0, prefix="video:")
        assert AuditEntry.objects.count() == 5
        sweep(pause=0)
        assert list(AuditEntry.objects.order_by("-at").values_list("name", flat=True)) == left

    def test_a_lock_may_be_called_as_a_limiter_is(self):
        for action in ("release", "pause_limit"):
            audit.record_acts(ME, [audit.NewEntry("tavily", action, "why", "done")])
        assert [act.action for act in acts("tavily", of="lock")] == ["release"]
        assert [act.action for act in acts("tavily", of="limit")] == ["pause_limit"]
        assert [act.action for act in acts("tavily")] == ["pause_limit", "release"]
