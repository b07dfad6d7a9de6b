"""What else operators do over HTTP: parked messages, who waits, pauses, the sweep, the audit trail."""

from __future__ import annotations

from typing import Any

import pytest
from django.urls import reverse

from django_tasklock import RateLimiter
from django_tasklock.backends import get_backend
from django_tasklock.models import AuditEntry, ParkedMessage
from django_tasklock.operations.sweep import stream
from django_tasklock.types import AcquireRequest
from tests.support.messages import park
from tests.support.redis_server import free_port
from tests.support.rest import Api, Taken, problem
from tests.support.sweeping import dead_holder

pytest_plugins = ["tests.support.redis_fixtures", "tests.support.rest_fixtures"]
pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _without_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody acts between the two looks of a sweep here."""
    monkeypatch.setattr(stream, "sleep", lambda pause: None)


def at(end: str, *what: Any) -> str:
    """The path of an end point."""
    return reverse(f"tasklock:{end}", args=what)


def dead(name: str) -> Taken:
    """A lock for the sweep, whose holder's process has ended."""
    taken = Taken(name)
    taken.release()
    get_backend().acquire(AcquireRequest(name, taken.token, 60_000, 60_000, DEAD))
    return taken


DEAD = dead_holder()


class TestMessages:
    def test_the_list(self, by_key: Api, lock_up: Any, name: str) -> None:
        lock_up(name)
        ids = [park(number, name) for number in range(3)]
        dead = park(3, name, state="dead", problem="it is not signed")
        body = by_key.get(at("parked"), {"limit": 2}).json()
        assert [one["task_id"] for one in body["messages"]] == ids[:2]
        assert (body["counts"]["parked"], body["counts"]["dead"], body["store_down"]) == (3, 1, False)
        first = body["messages"][0]
        assert (first["name"], first["task"], first["mode"]) == (name, "videos.process", "queue")
        assert first["why"]
        more = by_key.get(at("parked"), {"after": body["next"]}).json()
        assert [one["task_id"] for one in more["messages"]] == [ids[2], dead]
        assert more["next"] is None
        [one] = by_key.get(at("parked"), {"state": "dead"}).json()["messages"]
        assert (one["task_id"], one["problem"]) == (dead, "it is not signed")
        assert by_key.get(at("parked"), {"text": "no such"}).json()["messages"] == []
        for wrong in ({"limit": 0}, {"limit": 501}, {"after": -1}, {"state": "lost"}):
            problem(by_key.get(at("parked"), wrong), 400, "invalid")

    def test_discard(self, by_key: Api, name: str) -> None:
        task_id = park(1, name)
        body = by_key.post(at("discard-parked", task_id), {"reason": "a bad release"}).json()
        assert (body["task_id"], body["outcome"]) == (task_id, "discarded")
        assert not ParkedMessage.objects.filter(task_id=task_id, state="parked").exists()
        entry = AuditEntry.objects.get()
        assert (entry.actor, entry.action, entry.reason) == ("key grafana", "discard", "a bad release")

    def test_what_cannot_be_done_is_said(self, by_key: Api, lock_up: Any, name: str) -> None:
        lock_up(name)
        task_id = park(1, name)
        assert "not dead but parked" in problem(by_key.post(at("requeue-parked", task_id)), 409, "not_done")
        problem(by_key.post(at("publish-parked", task_id)), 409, "not_done")
        problem(by_key.post(at("discard-parked", task_id), {"reasn": "x"}), 400, "unknown_field")
        assert ParkedMessage.objects.get().state == "parked"
        assert not AuditEntry.objects.exists()


class TestPause:
    def test_pause_and_resume(self, by_key: Api, name: str) -> None:
        limiter = RateLimiter(name, "10/m")
        limiter.acquire()
        body = by_key.post(at("pause-limit", name), {"seconds": 90, "reason": "they are down"}).json()
        assert (body["outcome"], body["seconds"]) == ("paused", 90)
        assert by_key.get(at("limit", name)).json()["state"] == "paused"
        assert limiter.try_acquire() is None
        body = by_key.post(at("resume-limit", name), {"reason": "they are back"}).json()
        assert body["outcome"] == "resumed"
        assert 0 < body["seconds"] <= 90
        assert limiter.try_acquire() is not None
        problem(by_key.post(at("resume-limit", name)), 404, "not_paused")
        acts = by_key.get(at("limit", name)).json()["history"]
        assert [act["action"] for act in acts] == ["resume_limit", "pause_limit"]


class TestSweep:
    def test_a_dry_run_changes_nothing(self, by_key: Api, name: str) -> None:
        lock = dead(name)
        report = by_key.post(at("sweep"), {"prefix": name}).json()["report"]
        assert (report["dry_run"], report["swept"]) == (True, 1)
        assert lock.owned()
        assert by_key.get(at("sweeps")).json() == {"runs": [], "age": None}

    def test_a_sweep(self, by_key: Api, name: str) -> None:
        lock = dead(name)
        report = by_key.post(at("sweep"), {"prefix": name, "dry_run": False}).json()["report"]
        assert (report["dry_run"], report["swept"]) == (False, 1)
        assert not lock.owned()
        [run] = by_key.get(at("sweeps")).json()["runs"]
        assert (run["actor"], run["scope"], run["swept"]) == ("key grafana", f"prefix={name}", 1)
        detail = by_key.get(at("sweep-run", run["number"])).json()
        assert detail["counts"]["dead"] == {"found": 1, "acted": 1, "changed": 0, "kept": 0}
        problem(by_key.get(at("sweep-run", run["number"] + 1)), 404, "unknown_run")
        problem(by_key.get(at("sweep-run", 2**70)), 404, "unknown_run")
        assert by_key.get(at("sweeps")).json()["age"] is None, "it was confined to some names"
        by_key.post(at("sweep"), {"dry_run": False})
        assert by_key.get(at("sweeps")).json()["age"] >= 0

    def test_one_that_takes_too_long_says_what_was_left(self, by_key: Api, name: str, monkeypatch: Any) -> None:
        """It is not taken for a sweep of everything."""
        lock = dead(name)
        monkeypatch.setattr("django_tasklock.rest.table.MAX_SECONDS_IN_REQUEST", -1.0)
        report = by_key.post(at("sweep"), {"dry_run": False}).json()["report"]
        assert report["swept"] == 0
        assert any("not everything was checked" in why for why in report["left_out"])
        assert lock.owned()
        body = by_key.get(at("sweeps")).json()
        assert body["age"] is None
        assert "not everything" in body["runs"][0]["problem"]


class TestAudit:
    def test_pages_and_filters(self, by_key: Api, name: str) -> None:
        RateLimiter(name, "10/m").acquire()
        for reason in ("one", "two", "three"):
            by_key.post(at("reset-limit", name), {"reason": reason})
        by_key.post(at("pause-limit", name), {"seconds": 5})
        page = by_key.get(at("audit"), {"name": name, "limit": 3}).json()
        assert [act["action"] for act in page["acts"]] == ["pause_limit", "reset_limit", "reset_limit"]
        assert page["acts"][1].keys() == {"at", "actor", "action", "reason", "outcome", "name", "number"}
        rest = by_key.get(at("audit"), {"name": name, "below": page["next"]}).json()
        assert [act["reason"] for act in rest["acts"]] == ["one"]
        assert rest["next"] is None
        found = by_key.get(at("audit"), {"action": "pause_limit", "actor": "GRAFANA"}).json()["acts"]
        assert [act["name"] for act in found] == [name]
        since = page["acts"][0]["at"]
        assert [act["action"] for act in by_key.get(at("audit"), {"since": since}).json()["acts"]] == ["pause_limit"]
        assert by_key.get(at("audit"), {"before": since, "name": name}).json()["acts"][0]["reason"] == "three"
        for wrong in ({"limit": 0}, {"limit": 1001}, {"below": 0}, {"since": "yesterday"}):
            problem(by_key.get(at("audit"), wrong), 400, "invalid")


def test_the_store_is_down(by_key: Api, rest: Any, name: str) -> None:
    """Messages, runs and the trail are in the database."""
    task_id = park(1, name)
    rest(LOCATION=f"redis://127.0.0.1:{free_port()}/0")
    problem(by_key.get(at("waiters", name)), 503, "store_unavailable")
    problem(by_key.post(at("sweep")), 503, "store_unavailable")
    problem(by_key.post(at("publish-parked", task_id)), 503, "store_unavailable")
    body = by_key.get(at("parked")).json()
    assert (len(body["messages"]), body["store_down"]) == (1, True)
    assert by_key.get(at("sweeps")).status_code == by_key.get(at("audit")).status_code == 200
