"""``to_plain``: the JSON of values; and the sentences in which results say themselves."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.utils import translation

from django_tasklock import ConcurrencyLimiter, RateLimiter, TaskLock, operations
from django_tasklock.operations import Actor, Outcome, Result
from django_tasklock.operations.limits.permits import get_permits
from django_tasklock.operations.limits.rates import get_limit
from django_tasklock.operations.limits.values import LimitOutcome, LimitResult
from django_tasklock.operations.parked.acts import ParkedOutcome, ParkedResult
from tests.support.guards import ONCE, no_guards
from tests.support.stores import clear
from tests.support.sweeping import claimed, dead_holder, guarded_function, hold, swept
from tests.testapp.models import Video

pytestmark = pytest.mark.django_db(transaction=True)

BY = Actor("somebody")


@pytest.fixture(autouse=True)
def nothing_left() -> None:
    no_guards()
    clear("redis")


def plain(value: object) -> Any:
    document = operations.to_plain(value)
    assert json.loads(json.dumps(document)) == document
    return document


def test_a_lock_is_one_object_with_its_row() -> None:
    guarded_function(guard=ONCE)
    row = claimed()
    name = f"video:{row.pk}"
    token = hold(name, row=f"testapp.video:{row.pk}", task="videos.process", task_id="t-1")
    Video.objects.filter(pk=row.pk).update(lock_token=token)
    detail = operations.get_lock(name)
    lock = plain(detail.lock)
    assert lock["name"] == name
    assert lock["holder"] == "elsewhere:1 (videos.process[t-1])"
    assert (lock["state"], lock["alive"], lock["dead"], lock["without_timeout"]) == ("live", None, False, False)
    assert lock["acquired_at"].endswith("Z")
    assert lock["row"] == {"model": "testapp.video", "pk": str(row.pk), "lookup": "pk"}
    document = plain(detail)
    assert document["lock"].keys() == lock.keys()
    assert document["row"].items() >= {"pk": str(row.pk), "agrees": True, "states": ["uploading", "failed"]}.items()
    assert document["explanation"] == detail.explanation
    assert token not in json.dumps(document)


def test_limits_and_permits() -> None:
    RateLimiter("api", "10/m").acquire()
    with ConcurrencyLimiter("transcode", 3):
        document = plain(get_permits("transcode"))
        assert (document["used"], document["limit"], len(document["members"])) == (1, 3, 1)
    limit = plain(get_limit("api").limit)
    assert (limit["state"], limit["usage"]["windows"][0]["used"]) == ("open", 1)


def test_a_sweep_and_its_runs() -> None:
    hold("report:7", dead_holder())
    report = plain(swept(by=BY))
    assert (report["swept"], report["dry_run"]) == (1, False)
    [run] = operations.sweep_runs()
    assert plain(run)["actor"] == "somebody"


def test_the_audit_trail() -> None:
    with TaskLock("mine"):
        operations.release_lock("mine", by=BY, reason="stuck")
    [act] = operations.acts("mine")
    assert plain(act).items() >= {"actor": "somebody", "action": "release", "reason": "stuck", "name": "mine"}.items()
    assert str(act).endswith(" (stuck)")


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


@pytest.mark.parametrize("outcome", LimitOutcome)
def test_results_on_limits_do(outcome: LimitOutcome) -> None:
    result = LimitResult("api", outcome, share=0.5, seconds=90)
    assert "api" in str(result)
    assert str(result).startswith("Nothing was done: ") is not bool(result)


@pytest.mark.parametrize("outcome", ParkedOutcome)
def test_results_on_messages_do(outcome: ParkedOutcome) -> None:
    result = ParkedResult("id-1", outcome, "it is promoted")
    assert str(result).startswith("Message id-1")
    assert (": not done: it is promoted." in str(result)) is not bool(result)
    assert plain(result) == {"task_id": "id-1", "outcome": outcome.value, "why": "it is promoted"}
