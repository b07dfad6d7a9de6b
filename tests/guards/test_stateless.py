"""``StateGuard()``: a row with a token and an epoch and no state, for tasks that write a result."""

from __future__ import annotations

from typing import Any

import pytest

from django_tasklock import Claim, StaleClaim, StateGuard, TaskLockError, current_claim, current_lock
from django_tasklock.checks.guards import check_guards
from django_tasklock.decorators.locks import model_lock
from django_tasklock.operations import Actor, get_lock, release_lock
from tests.support.guards import new_token, no_guards
from tests.support.public import in_store
from tests.support.sweeping import swept, tally_of
from tests.testapp.models import PlainVideo, Report, Video

pytestmark = [pytest.mark.redis, pytest.mark.database, pytest.mark.django_db(transaction=True)]

GUARD = StateGuard()


@pytest.fixture(autouse=True)
def _no_guard_is_registered(settings: Any) -> Any:
    no_guards()
    yield from in_store("redis", settings)


@pytest.fixture
def report() -> Report:
    """A row that nobody has claimed."""
    return Report.objects.create()


def now(report: Report) -> tuple[str, bool, int]:
    """Its result, whether it is claimed, and its epoch."""
    report.refresh_from_db()
    return report.result, bool(report.lock_token), report.lock_epoch


@model_lock(Report, guard=GUARD)
def write(pk: int, body: Any = lambda: None) -> Any:
    current_claim().update(result="begun")
    return body()


def fail() -> None:
    raise ValueError("codec")


def test_the_body_writes_and_no_state_is_written(report: Report) -> None:
    write(report.pk, lambda: now(report) == ("begun", True, 1) or pytest.fail("not claimed"))
    assert now(report) == ("begun", False, 1)
    with pytest.raises(ValueError, match="codec"):
        write(report.pk, fail)
    assert now(report) == ("begun", False, 2)
    assert write(report.pk + 1)["reason"] == "missing"


def test_a_later_claim_takes_the_row_and_the_earlier_one_can_change_nothing(report: Report) -> None:
    first = Claim.take(Report, report.pk, GUARD, new_token())
    second = Claim.take(Report, report.pk, GUARD, new_token())
    for write_late in (first.finish, first.fail, first.give_back, lambda: first.update(result="stale")):
        with pytest.raises(StaleClaim, match="belongs to a newer claim than epoch 1"):
            write_late()
    with pytest.raises(StaleClaim), first.transaction():
        pytest.fail("entered")
    assert second.valid
    second.give_back()
    assert now(report) == ("", False, 2)


def test_an_operator_releases_the_lock_and_takes_the_row_from_its_holder(report: Report) -> None:
    seen: list[Any] = []

    def body() -> None:
        name = current_lock().name
        seen.append(get_lock(name))
        with pytest.raises(TaskLockError, match="has no states, so it cannot be left 'failed'"):
            release_lock(name, by=Actor("me"), row_state="failed")
        seen.append(release_lock(name, by=Actor("me")))
        current_claim().update(result="stale")

    GUARD.register(Report, write.lock)  # type: ignore[attr-defined]
    with pytest.raises(StaleClaim):
        write(report.pk, body)
    detail, released = seen
    assert (detail.row.field, detail.row.state, detail.row.agrees, list(detail.row.states)) == ("", None, True, [])
    assert f"testapp.report:{report.pk} is claimed by this holder" in " ".join(detail.explanation)
    assert released.fenced
    assert now(report) == ("begun", False, 2)


def test_a_sweep_finds_what_is_claimed_by_its_token(report: Report) -> None:
    GUARD.register(Report, write.lock)  # type: ignore[attr-defined]
    Report.objects.create()  # nobody has claimed it
    stale = Claim.take(Report, report.pk, GUARD, new_token())
    assert tally_of(swept(dry_run=True)) == {"abandoned": (1, 1, 0, 0)}
    assert now(report) == ("", True, 1)
    assert tally_of(swept()) == {"abandoned": (1, 1, 0, 0)}
    assert now(report) == ("", False, 2)
    with pytest.raises(StaleClaim):
        stale.update(result="stale")
    assert tally_of(swept()) == {}


def test_a_state_is_refused_where_there_are_none() -> None:
    with pytest.raises(TaskLockError, match="done='ready' needs states to claim from: give claim_from"):
        StateGuard(done="ready")


def test_a_model_without_the_two_columns_is_refused_also_by_the_checks() -> None:
    video = PlainVideo.objects.create()
    with pytest.raises(TaskLockError, match="testapp.PlainVideo has no states, and the model no columns lock_token"):
        Claim.take(PlainVideo, video.pk, GUARD, new_token())
    GUARD.register(PlainVideo)
    GUARD.register(Video)
    assert [one.id for one in check_guards()] == ["tasklock.E004"]
    assert tally_of(swept()) == {}
