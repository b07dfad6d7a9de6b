"""What happens between the two looks of a sweep: renewed, finished, taken over, swept by another. Never a live one."""

from __future__ import annotations

import math
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connections, transaction

from django_tasklock import StaleClaim
from django_tasklock.backends import get_backend
from django_tasklock.celery.republish import Publisher
from django_tasklock.exceptions import TransactionOpen
from django_tasklock.guards.claim import Claim
from django_tasklock.locks import holder as holders
from django_tasklock.operations.sweep import restoring, stream, sweep
from django_tasklock.types import Renewal
from tests.support.guards import GUARD, ONCE, elsewhere, no_guards
from tests.support.stores import clear
from tests.support.sweeping import (
    between_passes,
    claimed,
    claimed_by_dead,
    dead_holder,
    guarded_function,
    hold,
    state,
    swept,
    tally_of,
)
from tests.testapp.models import PlainVideo, Video

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database, pytest.mark.redis]


@pytest.fixture(autouse=True)
def store() -> None:
    """Empty; the only guard is ``ONCE``."""
    no_guards()
    clear("redis")
    guarded_function(guard=ONCE)


@pytest.mark.parametrize("happens", ["it is renewed", "its task ends"])
def test_a_lock_that_is_renewed_or_released_between_the_looks_is_kept(
    monkeypatch: pytest.MonkeyPatch, happens: str
) -> None:
    row, token = claimed_by_dead()
    name = f"video:{row.pk}"

    def ends() -> None:
        Video.objects.filter(pk=row.pk).update(status="ready", lock_token="")
        get_backend().release(name, token)

    renewed = happens == "it is renewed"
    between_passes(monkeypatch, (lambda: get_backend().renew([Renewal(name, token, 90_000)])) if renewed else ends)
    assert tally_of(swept()) == {"dead": (1, 0, 1, 0)}
    assert (get_backend().get(name) is not None) is renewed
    assert state(row) == (("processing", token, 1) if renewed else ("ready", "", 1))


def test_a_stale_worker_is_refused_and_no_sweep_is_inside_a_transaction() -> None:
    """gold standard 8.17: judged dead while it lived, it changes nothing."""
    row, token = claimed_by_dead()
    stale = Claim(Video, row.pk, ONCE, token)
    stale.epoch, stale.taken = 1, True
    with transaction.atomic(), pytest.raises(TransactionOpen):
        swept()
    assert get_backend().get(f"video:{row.pk}") is not None
    swept()
    with pytest.raises(StaleClaim):
        stale.finish()
    assert state(row) == ("uploading", "", 2)


def test_a_row_whose_worker_writes_to_it_between_the_looks_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has lost its lock, as after a flush of the store, and is alive."""
    no_guards()
    guarded_function(guard=GUARD)
    row = claimed()
    worker = Claim(Video, row.pk, GUARD, row.lock_token)
    worker.epoch, worker.taken = 1, True
    between_passes(monkeypatch, lambda: worker.update(status="transcoding"))
    assert tally_of(swept()) == {"abandoned": (1, 0, 1, 0)}
    worker.finish()
    assert state(row)[0] == "ready"


@pytest.mark.parametrize("moment", ["the looks", "the second look and the act"])
def test_a_new_holder_is_never_released(monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    row, token = claimed_by_dead()
    name = f"video:{row.pk}"
    taken: list[Claim] = []

    def changes_hands() -> None:
        get_backend().release(name, token)
        Video.objects.filter(pk=row.pk).update(status="uploading", lock_token="")
        ours = hold(name, holders.holder_json(), row=f"testapp.video:{row.pk}")
        taken.append(elsewhere(lambda: Claim.take(Video, row.pk, ONCE, ours)))

    if moment == "the looks":
        between_passes(monkeypatch, changes_hands)
    else:
        restore = restoring.RowRestorer.restore

        def restores(*args: Any, **kwargs: Any) -> Any:
            changes_hands()
            return restore(*args, **kwargs)

        monkeypatch.setattr(restoring.RowRestorer, "restore", restores)
    assert tally_of(swept()) == {"dead": (1, 0, 1, 0)}
    record = get_backend().get(name)
    assert record is not None
    assert record.token == taken[0].token
    taken[0].update(progress=50)
    taken[0].finish()
    assert state(row)[0] == "ready"


def test_another_dead_holder_is_left_to_the_next_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is looked at twice before anything is done about it."""
    holder = dead_holder()
    first = hold("passed on", holder)

    def changes_hands() -> None:
        get_backend().release("passed on", first)
        hold("passed on", holder)

    between_passes(monkeypatch, changes_hands)
    assert tally_of(swept()) == {"dead": (1, 0, 1, 0)}
    assert get_backend().get("passed on") is not None
    assert tally_of(swept()) == {"dead": (1, 1, 0, 0)}


@pytest.mark.parametrize("moment", ["the looks", "the second look and the act"])
def test_a_row_that_is_claimed_anew_is_left_alone(monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    row = claimed()
    taken: list[Claim] = []

    def claims() -> None:
        Video.objects.filter(pk=row.pk).update(status="uploading")
        token = hold(f"video:{row.pk}", row=f"testapp.video:{row.pk}")
        taken.append(elsewhere(lambda: Claim.take(Video, row.pk, ONCE, token)))

    if moment == "the looks":
        between_passes(monkeypatch, claims)
    else:
        revoke_claim = restoring.revoke_claim

        def revokes(*args: Any) -> bool:
            if not taken:
                claims()
            return revoke_claim(*args)

        monkeypatch.setattr(restoring, "revoke_claim", revokes)
    assert tally_of(swept()) == {"abandoned": (1, 0, 1, 0)}
    taken[0].finish()
    assert state(row)[0] == "ready"


def publishing(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows whose tasks are published from now on."""
    published: list[int] = []
    monkeypatch.setattr(Publisher, "obstacle", lambda self, locked, pk: "")
    monkeypatch.setattr(
        Publisher, "publish", lambda self, locked, pk, value: published.append(value) or ("id", math.inf)
    )
    return published


def test_the_task_of_a_row_that_is_claimed_just_then_is_not_published(monkeypatch: pytest.MonkeyPatch) -> None:
    published = publishing(monkeypatch)
    claimed()
    with monkeypatch.context() as patch:
        patch.setattr(restoring, "revoke_claim", lambda *args: False)
        assert tally_of(swept(requeue=True)) == {"abandoned": (1, 0, 1, 0)}
    assert published == []
    assert swept(requeue=True).published == 1


def test_a_row_whose_next_holder_has_the_lock_and_not_yet_the_row_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row = claimed()
    between_passes(monkeypatch, lambda: hold(f"video:{row.pk}"))
    assert tally_of(swept()) == {"abandoned": (1, 0, 1, 0)}
    assert state(row)[0] == "processing"


def test_a_row_without_a_token_is_not_taken_from_whoever_claims_it_just_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its state alone would not tell: so its lock is held for the moment of the UPDATE."""
    no_guards()
    guarded_function(PlainVideo, name="plain:{video_id}", guard=ONCE)
    row = claimed(PlainVideo)
    busy: list[bool] = []
    revoke_claim = restoring.revoke_claim

    def revokes(*args: Any) -> bool:
        busy.append(get_backend().get(f"plain:{row.pk}") is not None)
        return revoke_claim(*args)

    monkeypatch.setattr(restoring, "revoke_claim", revokes)
    assert tally_of(swept()) == {"abandoned": (1, 1, 0, 0)}
    assert busy == [True]
    assert get_backend().get(f"plain:{row.pk}") is None
    row = claimed(PlainVideo)
    holding = restoring.acquire_briefly

    def taken(names: Any) -> Any:
        hold(f"plain:{row.pk}")
        return holding(names)

    monkeypatch.setattr(restoring, "acquire_briefly", taken)
    assert tally_of(swept()) == {"abandoned": (1, 0, 1, 0)}
    row.refresh_from_db()
    assert row.status == "processing"


def test_two_sweeps_at_once_act_and_publish_once(monkeypatch: pytest.MonkeyPatch) -> None:
    published = publishing(monkeypatch)
    rows = [claimed_by_dead()[0] for _ in range(3)] + [claimed() for _ in range(3)]
    together = threading.Barrier(2, timeout=30)
    monkeypatch.setattr(stream, "sleep", lambda pause: together.wait())

    def one() -> Any:
        try:
            return sweep(pause=0.0, requeue=True)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(2) as pool:
        reports = [part.result() for part in [pool.submit(one), pool.submit(one)]]
    # Of one lock the row may be put back by one sweep and the lock be released by the other: then both have acted.
    assert 6 <= sum(report.swept for report in reports) <= 9, [report.findings for report in reports]
    assert all(get_backend().get(f"video:{row.pk}") is None for row in rows)
    assert {state(row) for row in rows} == {("uploading", "", 2)}, "the epoch was raised once"
    assert sorted(published) == sorted(row.pk for row in rows)
