"""Writes to a guarded row that stand in for ``save()`` do what ``save()`` does besides."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from django_tasklock import Claim, StaleClaim
from django_tasklock.operations import Actor, release_lock
from django_tasklock.signals import state_changed
from tests.support.guards import ONCE, answer_lost, elsewhere, heard, no_guards, take
from tests.support.sweeping import claimed, guarded_function, hold, swept
from tests.testapp.models import Cassette, PlainTape, Tape, Video

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


def locked(model):
    """A row that somebody elsewhere has claimed, under its lock."""
    guarded_function(model, guard=ONCE)
    row = claimed(model)
    token = hold(f"video:{row.pk}", row=f"{model._meta.label_lower}:{row.pk}")
    if model is not PlainTape:
        model.objects.filter(pk=row.pk).update(lock_token=token)
    return row


def release(row):
    assert release_lock(f"video:{row.pk}", by=Actor("somebody")).fenced


@tapes
class TestColumnsThatSaveSets:
    @pytest.mark.parametrize("end", [Claim.finish, Claim.fail, Claim.give_back])
    def test_a_claim_moves_them_with_each_write(self, model, end):
        row, other = aged(model.objects.create()), aged(model.objects.create())
        claim = take(row, ONCE)
        assert moved(row)
        claim.update(progress=50)
        assert moved(row)
        end(claim)
        assert moved(row)
        assert (row.progress, row.status) == (50, {Claim.finish: "ready", Claim.fail: "failed"}.get(end, "uploading"))
        assert not moved(other)

    def test_a_value_that_is_given_wins(self, model):
        row = model.objects.create()
        take(row, ONCE).update(updated_at=LONG_AGO, version=8)
        row.refresh_from_db()
        assert (row.updated_at, row.version) == (LONG_AGO, 8)


class TestSignal:
    """``state_changed``: one for each committed write of a state."""

    @tapes
    @pytest.mark.parametrize(
        ("end", "state", "why"),
        [
            (Claim.finish, "ready", "done"),
            (Claim.fail, "failed", "failed"),
            (Claim.give_back, "uploading", "given_back"),
        ],
    )
    def test_a_claim_and_its_writes_of_the_state(self, model, end, state, why):
        row = model.objects.create()
        with heard(state_changed) as told:
            claim = take(row, ONCE)
            claim.update(progress=50)
            claim.update(status="packaging", progress=90)
            end(claim)
        assert [(one["old_state"], one["new_state"], one["why"]) for one in told] == [
            ("uploading", "processing", "claimed"),
            ("processing", "packaging", "updated"),
            ("packaging", state, why),
        ]
        epoch = None if model is PlainTape else 1
        assert {(one["sender"], one["model"], one["pk"], one["epoch"]) for one in told} == {
            (f"{model._meta.label}:{row.pk}", model, row.pk, epoch)
        }

    @tapes
    def test_the_sweep_and_a_release_by_force(self, model):
        epoch = None if model is PlainTape else 2
        for act, why in ((lambda row: swept(), "swept"), (release, "forced")):
            row = locked(model) if why == "forced" else claimed(model)
            guarded_function(model, guard=ONCE)
            with heard(state_changed) as told:
                act(row)
            assert [(one["pk"], one["old_state"], one["new_state"], one["epoch"], one["why"]) for one in told] == [
                (row.pk, "processing", "uploading", epoch, why)
            ]

    def test_it_is_sent_after_the_commit_and_not_after_a_rollback_nor_by_a_stale_write(self):
        video = Video.objects.create()
        stale = take(video)
        seen = []

        def receiver(pk, new_state, **details):
            seen.append((new_state, elsewhere(lambda: Video.objects.get(pk=pk).status)))

        state_changed.connect(receiver)
        try:
            claim = take(video)
            with pytest.raises(StaleClaim):
                stale.finish()
            with pytest.raises(ZeroDivisionError), claim.transaction():
                claim.update(status="never")
                raise ZeroDivisionError
            with claim.transaction():
                claim.update(status="packaging")
                assert seen == [("processing", "processing")]
            claim.finish()
        finally:
            state_changed.disconnect(receiver)
        assert seen == [(state, state) for state in ("processing", "packaging", "ready")]

    def test_a_receiver_that_fails_keeps_nothing_from_happening(self, caplog):
        video = Video.objects.create()

        def receiver(**details):
            raise ZeroDivisionError

        state_changed.connect(receiver)
        try:
            with heard(state_changed) as told:
                take(video, ONCE).finish()
        finally:
            state_changed.disconnect(receiver)
        video.refresh_from_db()
        assert (video.status, len(told)) == ("ready", 2)
        assert "ZeroDivisionError" in caplog.text

    @pytest.mark.parametrize("model", [Tape, PlainTape])
    def test_it_is_sent_once_if_the_answer_to_the_commit_is_lost(self, model):
        row = model.objects.create()
        with heard(state_changed) as told:
            with answer_lost("COMMIT") as lost:
                claim = take(row, ONCE)
            assert lost
            with answer_lost("COMMIT") as lost:
                claim.finish()
            assert lost
        assert [(one["old_state"], one["new_state"]) for one in told] == [
            ("uploading", "processing"),
            ("processing", "ready"),
        ]

    def test_without_a_receiver_a_write_is_one_statement(self, django_assert_num_queries):
        claim = take(Video.objects.create(), ONCE)
        with django_assert_num_queries(1):
            claim.finish()
