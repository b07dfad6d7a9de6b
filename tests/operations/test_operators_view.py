"""What operators see is so: a dead holder is no live one, a search goes on, what needs somebody comes first."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
import redis
from django.core.management import CommandError, call_command
from django.utils import timezone

from django_tasklock import RateLimiter, TaskLockError, operations
from django_tasklock.backends.contract import lists
from django_tasklock.backends.contract.lists import Query
from django_tasklock.models import AuditEntry
from django_tasklock.operations import Actor, LockState, acts, audit, get_lock, list_locks, sweep
from django_tasklock.operations.limits.rates import list_limits
from tests.support.admin_pages import LIST, Reader, page_of, words
from tests.support.rest import KEY, Api, problem, url
from tests.support.stores import clear, stores
from tests.support.sweeping import dead_holder, hold

pytest_plugins = ["tests.support.redis_fixtures", "tests.support.admin_fixtures", "tests.support.rest_fixtures"]
pytestmark = pytest.mark.django_db(transaction=True)
ME = Actor("me")


@pytest.fixture
def dead(take) -> str:
    """The name of a lock whose holder's process has ended, with a guarded row's worth of time left."""
    take("6", **json.loads(dead_holder()))
    return "6"


class TestADeadHolder:
    def test_in_the_admin(self, admin_settings, operator, dead):
        page = operator.get(LIST)
        assert "✕ holder has ended" in words(page.text)
        assert "<meter" not in page.text
        assert "● live" not in words(page.text)
        detail = operator.get(page_of(dead)).text
        assert 'id="tasklock-release"' in detail
        assert 'id="tasklock-ask"' not in detail
        assert "it cannot be asked" in words(operator.get(page_of(dead, "ask")).text)
        done = operator.post(page_of(dead, "ask"), {"fingerprint": get_lock(dead).lock.info.fingerprint}, follow=True)
        assert [message.level_tag for message in done.context["messages"]] == ["error"]
        assert get_lock(dead).lock.asked_for is None

    def test_over_rest_and_in_the_command(self, rest, dead, capsys):
        by_key = Api(headers={"authorization": f"Api-Key {KEY}"})
        assert "has ended" in problem(by_key.post(url(dead, "ask-release"), {}), 409, "nobody_to_ask")
        assert by_key.get(url(dead)).json()["alive"] is False
        call_command("locks", no_color=True)
        assert capsys.readouterr().out.startswith("6: dead, ")
        with pytest.raises(CommandError, match="has ended"):
            call_command("locks", "--ask", dead)
        with pytest.raises(TaskLockError, match="release the lock, or sweep"):
            operations.ask_release(dead, by=ME)
        assert acts(dead) == []


def test_without_expiry_nothing_runs_down(admin_settings, operator, take, settings, capsys):
    take("6")
    with redis.Redis.from_url(settings.TASKLOCK["LOCATION"]) as by_hand:
        by_hand.persist("task_lock:6")
    page = operator.get(LIST)
    assert "no limit never expires" in words(page.text)
    assert "<meter" not in page.text
    assert not [one for one in Reader(operator.get(page_of("6")).text).elements if one[0] == "meter"]
    call_command("locks", no_color=True)
    assert "of its timeout left" not in capsys.readouterr().out


@pytest.mark.parametrize("kind", stores("redis", "database", "memory"))
def test_a_short_lease_is_not_always_expiring(kind, settings):
    backend = {"database": "database.DatabaseBackend", "memory": "memory.MemoryBackend"}.get(kind)
    settings.TASKLOCK = {**settings.TASKLOCK, "LEASE": 6}
    if backend:
        settings.TASKLOCK = {"BACKEND": f"django_tasklock.backends.{backend}", "LEASE": 6}
    clear(kind)
    hold("6", ttl=6000)
    [lock] = list_locks().locks
    assert lock.state is LockState.LIVE
    assert list_locks(Query("expiring")).locks == []
    assert operations.count_locks().expiring == 0
    settings.TASKLOCK = {**settings.TASKLOCK, "LEASE": 60}
    if kind != "memory":
        assert list_locks().locks[0].state is LockState.EXPIRING
        assert operations.count_locks().expiring == 1


@pytest.mark.parametrize("kind", stores("redis", "database"))
def test_a_search_and_another_order_read_on_and_say_if_there_is_more(kind, settings, monkeypatch):
    if kind == "database":
        settings.TASKLOCK = {"BACKEND": "django_tasklock.backends.database.DatabaseBackend"}
    clear(kind)
    monkeypatch.setattr(lists, "PART", 5)
    for number in range(120):
        hold(f"other:{number}")
    hold("wanted:1")
    hold("wanted:2", timeout=60_000)
    query = Query(order="left", text="wanted", limit=10)
    page = list_locks(query)
    assert [lock.info.name for lock in page.locks] == ["wanted:2", "wanted:1"]
    assert (page.total, page.next, page.more) == (2, None, False)
    first = list_locks(query._replace(limit=1))
    assert [lock.info.name for lock in first.locks] == ["wanted:2"]
    rest = list_locks(query._replace(offset=first.next))
    assert [lock.info.name for lock in rest.locks] == ["wanted:1"]
    monkeypatch.setattr(lists, "MOST", 5)
    cut = list_locks(query)
    assert (list(cut.locks), cut.more) == ([], True)
    assert not list_locks(Query(limit=10)).more


@pytest.mark.parametrize("kind", stores("redis", "database"))
def test_a_paused_limiter_comes_first(kind, settings):
    names = [f"idle:{number:02}" for number in range(40)]
    settings.TASKLOCK = {**settings.TASKLOCK, "RATE_LIMITS": dict.fromkeys(names, "5/h")}
    if kind == "database":
        settings.TASKLOCK = {**settings.TASKLOCK, "BACKEND": "django_tasklock.backends.database.DatabaseBackend"}
    clear(kind)
    RateLimiter("zfull", "1/h").acquire()
    RateLimiter("zopen", "9/h").acquire()
    paused = RateLimiter("zpaused", "9/h")
    paused.acquire()
    paused.penalize(600)
    shown = [view.name for view in list_limits(limit=3).limits]
    assert shown[:2] == ["zpaused", "zfull"]
    assert len(list_limits(offset=40, limit=50).limits) == 3


def test_a_click_does_not_build_the_page_that_it_does_not_show(admin_settings, operator, take, monkeypatch):
    mark = take("6")
    take("7")
    monkeypatch.setattr(operations, "get_lock", None)
    done = operator.post(page_of("6", "ask"), {"fingerprint": mark})
    assert done.status_code == 302
    done = operator.post(page_of("6", "release"), {"fingerprint": mark, "reason": "stuck"})
    assert done.status_code == 302
    assert [lock.info.name for lock in list_locks().locks] == ["7"]
    page = operator.post(f"{LIST}release/", {"lock": f"{list_locks().locks[0].info.fingerprint} 7"})
    assert page.status_code == 200


class TestTheAuditTrail:
    @pytest.fixture
    def trail(self, locks: None) -> None:
        now = timezone.now()
        for days in (1, 29, 31, 400, 500):
            at = now - timedelta(days=days)
            AuditEntry.objects.create(at=at, actor="a", action="release", key="k", name=str(days))

    def left(self) -> list[str]:
        return list(AuditEntry.objects.order_by("-at").values_list("name", flat=True))

    @pytest.mark.database
    @pytest.mark.parametrize(
        ("days", "left"), [(365, ["1", "29", "31"]), (30, ["1", "29"]), (None, ["1", "29", "31", "400", "500"])]
    )
    def test_the_sweep_lets_it_stay_so_long(self, trail, settings, monkeypatch, days: Any, left: list[str]):
        monkeypatch.setattr(audit, "BATCH_SIZE", 1)
        if days != 365:  # which is the default
            settings.TASKLOCK = {**settings.TASKLOCK, "AUDIT_DAYS": days}
        sweep(pause=0, dry_run=True)
        sweep(pause=0, prefix="video:")
        assert len(self.left()) == 5
        sweep(pause=0)
        assert self.left() == left

    def test_a_lock_may_be_called_as_a_limiter_is(self):
        for action in ("release", "pause_limit"):
            audit.record_acts(ME, [audit.NewEntry("tavily", action, "why", "done")])
        assert [act.action for act in acts("tavily", of="lock")] == ["release"]
        assert [act.action for act in acts("tavily", of="limit")] == ["pause_limit"]
        assert [act.action for act in acts("tavily")] == ["pause_limit", "release"]

    def test_in_bounded_steps(self, trail, monkeypatch):
        monkeypatch.setattr(audit, "BATCH_SIZE", 1)
        monkeypatch.setattr(audit, "MAX_BATCHES", 2)
        sweep(pause=0)
        assert self.left() == ["1", "29", "31"]
        monkeypatch.setattr(audit, "MAX_BATCHES", 1)
        assert audit.delete_old_entries(7) == 1
        assert self.left() == ["1", "29"]

    @pytest.mark.parametrize("wrong", [0, -1, 1.5, "30", True])
    def test_days_that_cannot_be(self, settings, wrong):
        from django_tasklock.conf import problems

        assert "whole number of days" in problems({"AUDIT_DAYS": wrong})[0][0]
        assert problems({"AUDIT_DAYS": 1}) == problems({"AUDIT_DAYS": None}) == []
