"""A row is claimed once at a time, in the states of its guard, and takes the writes of its newest claim alone."""

from __future__ import annotations

import json
import logging
import pickle

import pytest
from django.db import connection
from django.db.models import Exists, F, OuterRef, Q, TextChoices
from django.test.utils import CaptureQueriesContext

from django_tasklock import Claim, GuardRejected, StaleClaim, StateGuard, TaskLockError, current_claim
from django_tasklock.signals import claim_rejected, claim_stale
from tests.support.guards import GUARD, ONCE, heard, new_token, states, take
from tests.testapp.models import Draft, Note, PlainVideo, Video

pytestmark = [pytest.mark.database, pytest.mark.django_db]

STAYS = StateGuard(claim_from=["uploading"], claim_as="processing")
"""The end of a body leaves the state as it is."""

both = pytest.mark.parametrize("model", [Video, PlainVideo])


@pytest.mark.parametrize("used", [False, True], ids=["new", "used"])
def test_a_guard_travels_to_another_process(used):
    """As an argument of a process that is spawned: used here before, or not."""
    taken_down = Exists(Note.objects.filter(video_id=OuterRef("pk")))
    guard = StateGuard(claim_from=["uploading"], claim_as="processing", done="ready", exclude=taken_down)
    free, barred = Video.objects.create(), Video.objects.create()
    Note.objects.create(video=barred)
    if used:
        take(Video.objects.create(), guard)
    other = pickle.loads(pickle.dumps(guard))
    with pytest.raises(GuardRejected):
        take(barred, other)
    take(free, other).finish()
    assert states(free)[0] == "ready"


class TestClaiming:
    def test_one_update_checks_and_writes_everything(self):
        video = Video.objects.create()
        with CaptureQueriesContext(connection) as captured:
            claim = take(video)
        updates = [query["sql"] for query in captured if query["sql"].startswith("UPDATE")]
        assert len(updates) == 1
        sets, _, where = updates[0].partition(" WHERE ")
        assert all(column in sets for column in ("status", "lock_token", "lock_epoch"))
        assert all(column in where for column in ("id", "status", "hls_file"))
        video.refresh_from_db()
        assert (video.status, video.lock_token, video.lock_epoch) == ("processing", claim.token, 1)
        assert (claim.epoch, claim.taken) == (1, True)

    def test_from_each_state_of_claim_from_a_claim_raises_the_epoch_by_one(self):
        """It is the row's, whatever the lock store forgot."""
        video = Video.objects.create(lock_epoch=7_000_000_000)
        for number, state in enumerate(["uploading", "processing", "transcoding"], 1):
            Video.objects.update(status=state)
            assert take(video).epoch == 7_000_000_000 + number
            assert states(video) == ("processing", 0, 7_000_000_000 + number)

    @both
    def test_a_wrong_state_is_rejected_with_the_states_that_would_do(self, model, caplog):
        caplog.set_level(logging.INFO, "django_tasklock")
        row = model.objects.create(status="ready")
        with heard(claim_rejected) as told, pytest.raises(GuardRejected) as caught:
            take(row)
        label = f"testapp.{model.__name__}"
        assert str(caught.value) == (
            f"{label} {row.pk} cannot be claimed: its status is 'ready',"
            " not one of 'uploading', 'processing', 'transcoding'"
        )
        assert (caught.value.state, caught.value.reason) == ("ready", "invalid_state")
        name = f"{label}:{row.pk}"
        assert caught.value.name == name
        assert told == [{"sender": name, "model": model, "pk": row.pk, "state": "ready", "reason": "invalid_state"}]
        assert [record.levelname for record in caplog.records] == ["INFO"]
        assert str(caught.value) in caplog.text
        assert states(row)[:2] == ("ready", 0)

    @both
    def test_a_row_that_is_gone_is_rejected(self, model):
        with heard(claim_rejected) as told, pytest.raises(GuardRejected, match="^there is no testapp") as caught:
            Claim.take(model, 424242, GUARD, new_token())
        assert (caught.value.state, caught.value.reason) == (None, "missing")
        assert told[0]["pk"] == 424242

    @both
    def test_a_row_that_is_committed_between_the_update_and_the_read_is_claimed(self, model):
        def commit_late(execute, sql, params, many, context):
            result = execute(sql, params, many, context)
            if sql.startswith("UPDATE") and not model.objects.exists():
                model.objects.create(pk=424242)
            return result

        with connection.execute_wrapper(commit_late):
            assert Claim.take(model, 424242, GUARD, new_token()).valid
        assert states(model.objects.get())[0] == "processing"

    def test_a_row_that_its_base_manager_hides_is_rejected_with_that_reason(self):
        draft = Draft.objects.create(hidden=True)
        with pytest.raises(GuardRejected, match=f"^there is no testapp.Draft {draft.pk} to claim, or .*'objects'"):
            take(draft)

    @pytest.mark.parametrize(
        "exclude",
        [
            Q(note__text="taken down"),
            {"note__text": "taken down"},
            Exists(Note.objects.filter(video=OuterRef("pk"), text="taken down")),
        ],
        ids=["Q", "dict", "Exists"],
    )
    def test_the_exclusion_may_ask_another_table(self, exclude):
        barred, free = Video.objects.create(), Video.objects.create()
        Note.objects.create(video=barred, text="taken down")
        guard = StateGuard(claim_from=["uploading"], claim_as="processing", exclude=exclude)
        with heard(claim_rejected) as told, pytest.raises(GuardRejected, match="excluded.*'uploading'") as caught:
            take(barred, guard)
        assert caught.value.state == told[0]["state"] == "uploading"
        assert states(barred) == ("uploading", 0, 0)
        take(free, guard)

    def test_a_second_claim_with_the_same_token_is_a_claim_like_any_other(self):
        video = Video.objects.create()
        token = new_token()
        Claim.take(Video, video.pk, ONCE, token)
        with pytest.raises(GuardRejected, match="'processing'"):
            Claim.take(Video, video.pk, ONCE, token)


class TestWriting:
    @both
    @pytest.mark.parametrize(
        ("guard", "close", "state"),
        [
            (GUARD, Claim.finish, "ready"),
            (GUARD, Claim.fail, "failed"),
            (ONCE, Claim.give_back, "uploading"),
            (STAYS, Claim.finish, "processing"),
            (STAYS, Claim.fail, "processing"),
        ],
    )
    def test_the_closing_writes(self, model, guard, close, state):
        row = model.objects.create()
        close(take(row, guard))
        assert states(row)[:2] == (state, 0)
        assert not getattr(row, "lock_token", ""), "it is claimed by nobody"

    @both
    def test_the_state_may_be_moved_on_before_the_end(self, model):
        row = model.objects.create()
        claim = take(row)
        claim.update(status="transcoding")
        claim.update(status="packaging", progress=9)
        claim.update(progress=10)
        assert states(row)[:2] == ("packaging", 10)
        claim.finish()
        assert states(row)[:2] == ("ready", 10)

    @pytest.mark.parametrize(
        ("column", "why"),
        [
            ({"lock_token": "x"}, "belong to the claim"),
            ({"lock_epoch": 9}, "belong to the claim"),
            ({"pk": 4711}, "primary key"),
            ({"id": 4711}, "primary key"),
        ],
        ids=str,
    )
    def test_what_the_claim_knows_its_row_by_is_not_for_writing(self, column, why):
        claim = take(Video.objects.create())
        with pytest.raises(TypeError, match=why):
            claim.update(progress=1, **column)
        claim.update(progress=2)

    def test_valid_says_whose_the_row_is(self):
        video = Video.objects.create()
        first = take(video)
        assert first.valid
        second = take(video)
        assert (first.valid, second.valid) == (False, True)
        Video.objects.all().delete()
        assert not second.valid


class TestOvertaken:
    """A worker that was thought dead: its writes change nothing, and it is told so."""

    WRITES = {
        "update": (lambda claim: claim.update(progress=99, hls_file="mine"), ("progress", "hls_file")),
        "finish": (Claim.finish, ("status",)),
        "fail": (Claim.fail, ("status",)),
        "give_back": (Claim.give_back, ("status",)),
        "transaction": (lambda claim: claim.transaction().__enter__(), ("transaction",)),
    }

    @pytest.mark.parametrize("write", WRITES)
    def test_every_write_is_refused_logged_and_signalled(self, write, caplog):
        video = Video.objects.create()
        stale, fresh = take(video), take(video)
        writes, attempted = self.WRITES[write]
        with heard(claim_stale) as told, pytest.raises(StaleClaim, match="newer claim than epoch 1") as caught:
            writes(stale)
        assert states(video) == ("processing", 0, 2)
        assert video.hls_file is None
        name = f"testapp.Video:{video.pk}"
        assert caught.value.name == name
        assert told == [{"sender": name, "model": Video, "pk": video.pk, "attempted": attempted}]
        assert [(record.levelname, record.message) for record in caplog.records] == [("ERROR", str(caught.value))]
        fresh.finish()

    def test_also_when_the_successor_has_finished_and_when_the_row_is_gone(self):
        video = Video.objects.create()
        stale = take(video)
        take(video).finish()
        with pytest.raises(StaleClaim):
            stale.finish()
        assert states(video) == ("ready", 0, 2)
        Video.objects.all().delete()
        for write in (lambda: stale.update(progress=1), stale.transaction().__enter__):
            with heard(claim_stale) as told, pytest.raises(StaleClaim, match="is gone"):
                write()
            assert told == [], "nobody can tell whether it was overtaken, and nothing was written"
        stale.finish()

    def test_an_epoch_alone_or_a_token_alone_is_not_enough(self):
        video = Video.objects.create()
        claim = take(video)
        Video.objects.update(lock_token="somebody else")
        with pytest.raises(StaleClaim):
            claim.update(progress=1)
        Video.objects.update(lock_token=claim.token, lock_epoch=F("lock_epoch") + 1)
        with pytest.raises(StaleClaim):
            claim.update(progress=1)


class TestSave:
    """``save()`` writes every column of an instance that may have been read long ago."""

    @pytest.mark.parametrize("update_fields", [None, ["progress", "lock_token", "lock_epoch"]])
    def test_an_overtaken_worker_does_not_take_the_row_back_with_it(self, update_fields):
        video = Video.objects.create()
        stale = take(video)
        old = Video.objects.get(pk=video.pk)
        fresh = take(video)
        old.progress = 99
        old.save(update_fields=update_fields)
        assert states(video) == ("processing", 99, 2)
        with pytest.raises(StaleClaim):
            stale.update(progress=1)
        fresh.update(progress=50)
        assert states(video) == ("processing", 50, 2)

    def test_the_first_time_it_writes_them(self):
        made = Video(lock_token="x", lock_epoch=7)
        made.save()
        with_key = Video(pk=made.pk + 1, lock_token="y", lock_epoch=8)
        with_key.save()
        for video, expected in ((made, ("x", 7)), (with_key, ("y", 8))):
            video.refresh_from_db()
            assert (video.lock_token, video.lock_epoch) == expected


class TestTransaction:
    def test_yields_the_row_and_commits_what_is_written_in_it(self):
        video = Video.objects.create()
        claim = take(video)
        with claim.transaction() as row:
            assert connection.in_atomic_block
            assert (type(row), row.pk, row.status, row.lock_epoch) == (Video, video.pk, "processing", 1)
            Note.objects.create(video=row, text="kept")
            claim.update(progress=50)
        assert states(video) == ("processing", 50, 1)
        assert Note.objects.count() == 1

    @both
    def test_an_error_inside_undoes_all_of_it_and_the_claim_goes_on(self, model):
        row = model.objects.create()
        claim = take(row)
        with pytest.raises(ZeroDivisionError), claim.transaction():
            claim.update(status="transcoding", progress=50)
            raise ZeroDivisionError
        assert states(row)[:2] == ("processing", 0)
        claim.fail()
        assert states(row)[:2] == ("failed", 0)

    def test_a_model_without_the_columns_has_its_state_compared(self):
        row = PlainVideo.objects.create()
        claim = take(row)
        with claim.transaction():
            claim.update(status="transcoding")
        PlainVideo.objects.update(status="ready")  # its successor has finished
        with pytest.raises(StaleClaim), claim.transaction():
            raise AssertionError("not to be entered")


class TestGuards:
    def test_a_guard_that_cannot_work_is_refused_where_it_is_written(self):
        for arguments, match in [
            (dict(claim_from="uploading", claim_as="x"), "must be a list of states, not the text 'uploading'"),
            (dict(claim_from=[], claim_as="x"), "at least one state"),
            (dict(claim_from=["a", None], claim_as="x"), "NULL"),
            (dict(claim_from=["a"], claim_as=None), "NULL"),
            (dict(claim_from=["a"], claim_as="x", retry="y"), "retry='y' is not in claim_from"),
            (dict(claim_from={"a", "b"}, claim_as="x"), "is a set, which has no first state"),
            (dict(claim_from=["a"], claim_as="x", exclude="hls_file"), "must be a Q object, Exists"),
        ]:
            with pytest.raises(TaskLockError, match=match):
                StateGuard(**arguments)

    def test_the_state_for_another_try(self):
        assert StateGuard(claim_from=["a", "b"], claim_as="b").retry == "b"
        assert StateGuard(claim_from=["a", "b"], claim_as="x").retry == "a"
        assert StateGuard(claim_from={"a", "b"}, claim_as="x", retry="a").retry == "a"

    def test_states_may_be_members_of_choices(self):
        class Status(TextChoices):
            NEW = "uploading"
            BUSY = "processing"

        guard = StateGuard(claim_from=[Status.NEW], claim_as=Status.BUSY)
        video = Video.objects.create()
        take(video, guard)
        with pytest.raises(GuardRejected) as caught:
            take(video, guard)
        assert json.dumps(caught.value.state) == '"processing"'

    def test_the_state_column_may_have_any_name_and_type(self):
        video = Video.objects.create()
        guard = StateGuard(field="progress", claim_from=[0], claim_as=1, done=2, failed=-1)
        claim = take(video, guard)
        with pytest.raises(GuardRejected, match="its progress is 1, not one of 0"):
            take(video, guard)
        claim.finish()
        assert states(video) == ("uploading", 2, 1)


def test_there_is_no_current_claim_outside_of_one():
    with pytest.raises(TaskLockError, match="inside a function decorated with model_lock"):
        current_claim()
