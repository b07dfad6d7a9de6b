"""Writes to a guarded row that stand in for ``save()`` do what ``save()`` does besides."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from django_tasklock import Claim
from django_tasklock.operations import Actor, release_lock
from tests.support.guards import ONCE, new_token, no_guards
from tests.support.sweeping import claimed, guarded_function, hold, swept
from tests.testapp.models import Cassette, PlainTape, Tape

pytestmark = [pytest.mark.database, pytest.mark.django_db(transaction=True)]

LONG_AGO = datetime(2001, 2, 3, tzinfo=UTC)

tapes = pytest.mark.parametrize("model", [Tape, PlainTape, Cassette])


@pytest.fixture(autouse=True)
def _locks_in_the_database(settings):
    settings.TASKLOCK = {"BACKEND": "django_tasklock.backends.database.DatabaseBackend"}
    no_guards()


def aged(row):
    """The row as if it had been saved long ago, seven times."""
    type(row).objects.filter(pk=row.pk).update(updated_at=LONG_AGO, made_at=LONG_AGO, version=7)
    return row


def moved(row) -> bool:
    """Whether the row has been saved since, by its column; then it is aged again."""
    row.refresh_from_db()
    assert (row.made_at, row.version, row.file.name) == (LONG_AGO, 7, "a.wav"), "these are taken from an instance"
    return aged(row) and row.updated_at > LONG_AGO


@tapes
class TestColumnsThatSaveSets:
    @pytest.mark.parametrize("end", [Claim.finish, Claim.fail, Claim.give_back])
    def test_a_claim_moves_them_with_each_write(self, model, end):
        row, other = aged(model.objects.create()), aged(model.objects.create())
        claim = Claim.take(model, row.pk, ONCE, new_token())
        assert moved(row)
        claim.update(progress=50)
        assert moved(row)
        end(claim)
        assert moved(row)
        assert (row.progress, row.status) == (50, {Claim.finish: "ready", Claim.fail: "failed"}.get(end, "uploading"))
        assert not moved(other)

    def test_a_value_that_is_given_wins(self, model):
        row = model.objects.create()
        Claim.take(model, row.pk, ONCE, new_token()).update(updated_at=LONG_AGO, version=8)
        row.refresh_from_db()
        assert (row.updated_at, row.version) == (LONG_AGO, 8)

    def test_the_sweep_moves_them(self, model):
        guarded_function(model, guard=ONCE)
        row = aged(claimed(model))
        swept()
        assert moved(row)
        assert row.status == "uploading"

    def test_a_release_by_force_moves_them(self, model):
        guarded_function(model, guard=ONCE)
        row = claimed(model)
        token = hold(f"video:{row.pk}", row=f"{model._meta.label_lower}:{row.pk}")
        if model is not PlainTape:
            model.objects.filter(pk=row.pk).update(lock_token=token)
        aged(row)
        assert release_lock(f"video:{row.pk}", by=Actor("somebody")).fenced
        assert moved(row)
        assert row.status == "uploading"
