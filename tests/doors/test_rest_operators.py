"""What else operators do over HTTP: limits and permits, parked messages, the sweep, the audit trail; and its page."""

from __future__ import annotations

import argparse
import json
import re
import secrets
import shlex
from typing import Any, get_args

import pytest
from django.urls import resolve, reverse

from django_tasklock import ConcurrencyLimiter, RateLimiter
from django_tasklock.backends import get_backend
from django_tasklock.models import AuditEntry, ParkedMessage
from django_tasklock.operations.sweep import stream
from django_tasklock.rest.access import RATES
from django_tasklock.rest.problems import Code
from django_tasklock.types import AcquireRequest, fingerprint
from tests import rest_page
from tests.support.messages import park
from tests.support.redis_server import free_port
from tests.support.rest import PREFIX, SECRETS, Api, Taken, problem
from tests.support.stores import clear
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


class TestLimits:
    def test_what_is_told(self, by_key: Api, name: str) -> None:
        limiter = RateLimiter(name, "1/m", "100/d")
        limiter.acquire()
        limiter.reserve()
        body = by_key.get(at("limit", name)).json()
        assert (body["name"], body["tenant"], body["configured"]) == (name, None, False)
        assert (body["rates"], body["state"], body["waiting"]) == (["1/m", "100/d"], "full", 1)
        usage = body["usage"]
        assert usage["windows"][0] == {"rate": "1/m", "window": 60.0, "limit": 1, "used": 1, "ahead": 1}
        assert (usage["paused"], usage["share"], usage["free"], usage["refused"]) == (0.0, 1.0, 0, 0)
        assert 110 < usage["next"] < 130
        listed = by_key.get(at("limits"), {"text": name}).json()
        assert (listed["total"], listed["next"], listed["limits"][0]["rates"]) == (1, None, ["1/m", "100/d"])

    def test_change(self, by_key: Api, name: str) -> None:
        limiter = RateLimiter(name, "10/h")
        limiter.acquire()
        response = by_key.post(at("change-limit", name), {"share": 0.1, "reason": "r"})
        assert (response.json()["share"], response.json()["before"]) == (0.1, 1.0)
        assert limiter.try_acquire() is None
        for wrong in ({}, {"share": 0}, {"share": 1.1}, {"share": None}):
            problem(by_key.post(at("change-limit", name), wrong), 400, "invalid")
        assert limiter.usage().share == 0.1

    def test_pause_and_resume(self, by_key: Api, name: str) -> None:
        limiter = RateLimiter(name, "10/m")
        limiter.acquire()
        body = by_key.post(at("pause-limit", name), {"seconds": 90, "reason": "they are down"}).json()
        assert (body["outcome"], body["seconds"]) == ("paused", 90)
        assert by_key.get(at("limit", name)).json()["state"] == "paused"
        assert limiter.try_acquire() is None
        body = by_key.post(at("resume-limit", name), {"reason": "they are back"}).json()
        assert body["outcome"] == "resumed"
        assert limiter.try_acquire() is not None
        problem(by_key.post(at("resume-limit", name)), 404, "not_paused")
        acts = by_key.get(at("limit", name)).json()["history"]
        assert [act["action"] for act in acts] == ["resume_limit", "pause_limit"]

    def test_unknown(self, by_key: Api, name: str) -> None:
        problem(by_key.get(at("limit", name)), 404, "unknown_limiter")
        problem(by_key.post(at("reset-limit", name)), 404, "unknown_limiter")
        problem(by_key.post(at("change-limit", name), {"share": 1}), 404, "unknown_limiter")
        assert AuditEntry.objects.count() == 0
        for wrong in ("x" * 201, "line\nbreak", "\x00"):
            problem(by_key.get(at("limit", wrong)), 400, "invalid_name")
            problem(by_key.post(at("reset-limit", wrong)), 400, "invalid_name")

    def test_release_of_one_members_permit(self, by_key: Api, name: str) -> None:
        holder = '{"host":"worker-1","pid":42,"task":"videos.transcode","task_id":"id-1","limit":3}'
        tokens = [secrets.token_hex(16) for _ in range(2)]
        SECRETS.update(tokens)
        for token in tokens:
            get_backend().permits.acquire(AcquireRequest(name, token, 60_000, 3_600_000, holder, limit=3))
        first, other = map(fingerprint, tokens)
        response = by_key.post(at("release-permit", name), {"member": first, "reason": "stuck"})
        body = response.json()
        assert (body["outcome"], body["member"]["fingerprint"]) == ("released", first)
        left = by_key.get(at("permits", name)).json()["members"]
        assert [one["fingerprint"] for one in left] == [other]
        problem(by_key.post(at("release-permit", name), {"member": first}), 404, "no_permit")
        problem(by_key.post(at("release-permit", name)), 400, "invalid")
        assert [entry.reason for entry in AuditEntry.objects.filter(name=name)] == ["stuck"]

    @pytest.mark.parametrize("end", ["lock", "release-lock", "ask-release", "waiters"])
    @pytest.mark.parametrize("lock", ["limits/x/reset", "parked/x/requeue", "audit"])
    def test_whatever_a_lock_is_called_its_end_points_are_its_own(self, rest: Any, end: str, lock: str) -> None:
        found = resolve(f"{PREFIX}{lock}/{end}")
        assert (found.url_name, found.kwargs) == (end, {"name": lock})


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
        assert ParkedMessage.objects.get().state == "parked"
        assert not AuditEntry.objects.exists()


class TestSweep:
    @pytest.fixture
    def dead(self, by_key: Api, name: str) -> Taken:
        """A lock for the sweep, whose holder's process has ended."""
        taken = Taken(name)
        taken.release()
        get_backend().acquire(AcquireRequest(name, taken.token, 60_000, 60_000, dead_holder()))
        return taken

    def test_a_dry_run_changes_nothing(self, by_key: Api, name: str, dead: Taken) -> None:
        report = by_key.post(at("sweep"), {"prefix": name}).json()["report"]
        assert (report["dry_run"], report["swept"]) == (True, 1)
        assert dead.owned()
        assert by_key.get(at("sweeps")).json() == {"runs": [], "age": None}

    def test_a_sweep(self, by_key: Api, name: str, dead: Taken) -> None:
        report = by_key.post(at("sweep"), {"prefix": name, "dry_run": False}).json()["report"]
        assert (report["dry_run"], report["swept"]) == (False, 1)
        assert not dead.owned()
        [run] = by_key.get(at("sweeps")).json()["runs"]
        assert (run["actor"], run["scope"], run["swept"]) == ("key grafana", f"prefix={name}", 1)
        detail = by_key.get(at("sweep-run", run["number"])).json()
        assert detail["counts"]["dead"] == {"found": 1, "acted": 1, "changed": 0, "kept": 0}
        problem(by_key.get(at("sweep-run", 2**70)), 404, "unknown_run")
        assert by_key.get(at("sweeps")).json()["age"] is None, "it was confined to some names"
        by_key.post(at("sweep"), {"dry_run": False})
        assert by_key.get(at("sweeps")).json()["age"] >= 0

    def test_one_that_takes_too_long_says_what_was_left(self, by_key: Api, dead: Taken, monkeypatch: Any) -> None:
        """It is not taken for a sweep of everything."""
        monkeypatch.setattr("django_tasklock.rest.table.MAX_SECONDS_IN_REQUEST", 0.0)
        report = by_key.post(at("sweep"), {"dry_run": False}).json()["report"]
        assert report["swept"] == 0
        assert any("not everything was checked" in why for why in report["left_out"])
        assert dead.owned()
        assert by_key.get(at("sweeps")).json()["age"] is None


class TestAudit:
    def test_pages_and_filters(self, by_key: Api, settings: Any, name: str) -> None:
        """Also where the project's own API reads other dates."""
        settings.REST_FRAMEWORK = {**settings.REST_FRAMEWORK, "DATETIME_INPUT_FORMATS": ["%d.%m.%Y"]}
        RateLimiter(name, "10/m").acquire()
        for reason in ("one", "two", "three"):
            by_key.post(at("reset-limit", name), {"reason": reason})
        by_key.post(at("pause-limit", name), {"seconds": 5})
        page = by_key.get(at("audit"), {"name": name, "limit": 3}).json()
        assert [act["action"] for act in page["acts"]] == ["pause_limit", "reset_limit", "reset_limit"]
        rest = by_key.get(at("audit"), {"name": name, "below": page["next"]}).json()
        assert [act["reason"] for act in rest["acts"]] == ["one"]
        assert rest["next"] is None
        found = by_key.get(at("audit"), {"action": "pause_limit", "actor": "GRAFANA"}).json()["acts"]
        assert [act["name"] for act in found] == [name]
        since = page["acts"][0]["at"]
        assert [act["action"] for act in by_key.get(at("audit"), {"since": since}).json()["acts"]] == ["pause_limit"]
        assert by_key.get(at("audit"), {"before": since, "name": name}).json()["acts"][0]["reason"] == "three"


def test_the_store_is_down(by_key: Api, rest: Any, name: str) -> None:
    """Nothing is told of where it is. Messages, runs and the trail are in the database."""
    task_id, port = park(1, name), free_port()
    rest(LOCATION=f"redis://127.0.0.1:{port}/0")
    for response in (
        by_key.get(at("locks")),
        by_key.get(at("lock", name)),
        by_key.post(at("release-lock", name)),
        by_key.post(at("ask-release", name)),
        by_key.get(at("waiters", name)),
        by_key.get(at("limits")),
        by_key.get(at("permits", name)),
        by_key.post(at("reset-limit", name)),
        by_key.post(at("sweep")),
        by_key.post(at("publish-parked", task_id)),
    ):
        assert problem(response, 503, "store_unavailable")
        assert int(response["Retry-After"]) > 0
        told = response.content.decode() + str(response.headers)
        assert not [secret for secret in (str(port), "127.0.0.1", "Traceback") if secret in told]
    body = by_key.get(at("parked")).json()
    assert (len(body["messages"]), body["store_down"]) == (1, True)
    assert by_key.get(at("sweeps")).status_code == by_key.get(at("audit")).status_code == 200


class TestPage:
    """docs/rest.md."""

    PAGE = rest_page.PAGE.read_text("utf-8")

    def test_its_tables_are_made_from_the_table(self) -> None:
        assert rest_page.made(self.PAGE) == self.PAGE, "python -m tests.rest_page"
        assert "<!-- made: end points -->" in self.PAGE

    def test_its_example_is_what_is_sent(self, by_key: Api, lock_up: Any, name: str) -> None:
        found = re.search(r"```json\n(.*?)```", self.PAGE, re.DOTALL)
        assert found is not None
        example = json.loads(found[1])
        lock_up(name)
        sent = by_key.get(reverse("tasklock:locks")).json()
        assert example.keys() == sent.keys()
        assert example["counts"].keys() == sent["counts"].keys()
        assert example["locks"][0].keys() == sent["locks"][0].keys()

    def test_its_commands(self, by_key: Api) -> None:
        """Those on limits, as they stand there."""
        clear("redis")  # a reset leaves the terms that a process had before
        limiter, permits = RateLimiter("tavily", "100/m"), ConcurrencyLimiter("transcode", 3)
        limiter.acquire()
        permits.acquire()
        [member] = permits.members()
        code = self.PAGE.split("## Limits")[1].split("```bash\n")[1].split("```")[0]
        curl = argparse.ArgumentParser()
        curl.add_argument("-H", "--header")
        curl.add_argument("-X", "--request")
        curl.add_argument("-d", "--data", action="append")
        curl.add_argument("url")
        said = []
        for command in code.replace("8d9221072fa0", member.fingerprint).splitlines():
            asked = curl.parse_args(shlex.split(command)[1:])
            assert asked.header.endswith("$KEY")
            url = asked.url.replace(".../", PREFIX)
            form = "application/x-www-form-urlencoded"
            said.append(by_key.post(url, "&".join(asked.data), form) if asked.data else by_key.get(url))
        assert {one.status_code for one in said} == {200}, [one.content for one in said]
        assert limiter.usage().share == 0.5
        assert permits.info().used == 0
        reasons = set(AuditEntry.objects.values_list("actor", "reason"))
        assert reasons == {("key grafana", what) for what in re.findall(r'-d reason="([^"]*)"', code)}

    def test_it_names_each_code_and_rate(self) -> None:
        assert not [code for code in get_args(Code) if f"`{code}`" not in self.PAGE]
        assert not [rate for rate in RATES if f'"{rate}"' not in self.PAGE]
