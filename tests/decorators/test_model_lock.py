"""``model_lock``: a lock and a claim around a function, and how it leaves the row."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import threading
from contextlib import nullcontext, suppress
from datetime import date

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db.models import Value

from django_tasklock import (
    Claim,
    GuardRejected,
    LockLost,
    StaleClaim,
    StateGuard,
    TaskLockError,
    current_claim,
    current_lock,
    force_release_task_lock,
    model_lock,
)
from django_tasklock.backends.memory import reset
from django_tasklock.decorators import call as running
from django_tasklock.signals import claim_rejected, claim_stale, lock_released, state_changed
from tests.support.guards import GUARD, MEMORY, ONCE, elsewhere, heard, held, held_by_another, new_token, states
from tests.support.public import in_store
from tests.testapp.models import PlainVideo, Ticket, Video

pytestmark = [pytest.mark.database, pytest.mark.django_db]


@pytest.fixture(autouse=True)
def _locks_in_memory(settings):
    settings.TASKLOCK = MEMORY
    reset()


@model_lock(Video, "video:{video_id}", pk="video_id", guard=GUARD, timeout=7200)
def process(video_id, body=lambda claim: "done"):
    return body(current_claim())


@model_lock("testapp.Video", "lazy:{pk}", guard=GUARD)
def process_lazily(pk):
    return current_claim().epoch


def fails(error):
    """A body that ends with ``error``."""

    def body(claim):
        raise error

    return body


def overtaken(claim):
    Claim.take(Video, claim.pk, GUARD, new_token())
    claim.update(progress=99)


def finished(claim):
    Claim.take(Video, claim.pk, GUARD, new_token()).finish()


def remade(claim):
    Video.objects.all().delete()
    Video.objects.create(pk=claim.pk)


PROCESSING, DONE, ANEW = ("processing", 0, 2), ("ready", 0, 2), ("uploading", 0, 0)


class TestModelLock:
    def test_a_whole_call(self):
        video = Video.objects.create()
        inside = []

        def body(claim):
            assert (claim.model, claim.pk, claim.token, claim.epoch) == (Video, video.pk, current_lock().token, 1)
            inside.append(states(video))
            claim.update(progress=40)
            inside.append(states(video))
            return {"segments": 12}

        assert process(video.pk, body) == {"segments": 12}
        assert inside == [("processing", 0, 1), ("processing", 40, 1)]
        assert states(video) == ("ready", 40, 1)
        assert not held(f"video:{video.pk}")
        with pytest.raises(TaskLockError):
            current_claim()

    def test_the_rows_key_by_position_keyword_or_default(self):
        first, second, third = (Video.objects.create() for _ in range(3))
        assert process(first.pk) == process(video_id=second.pk) == "done"

        @model_lock(Video, "default:{which}", pk="which", guard=GUARD)
        def work(which=third.pk):
            return "done"

        class Studio:
            @model_lock(Video, "studio:{pk}", guard=GUARD)
            def cut(self, pk):
                return self, current_claim().pk

        studio, last = Studio(), Video.objects.create()
        assert work() == "done"
        assert studio.cut(last.pk) == (studio, last.pk)
        assert [states(video)[0] for video in (first, second, third, last)] == ["ready"] * 4

    def test_a_model_without_the_columns(self):
        video = PlainVideo.objects.create()

        @model_lock(PlainVideo, "plain:{pk}", guard=GUARD)
        def work(pk, error=None):
            current_claim().update(progress=40)
            if error:
                raise error

        work(video.pk)
        assert states(video) == ("ready", 40)
        other = PlainVideo.objects.create()
        with pytest.raises(ValueError, match="codec"):
            work(other.pk, ValueError("codec"))
        assert states(other) == ("failed", 40)

    def test_two_locks_over_one_row_are_settled_by_the_row(self):
        """One of them names the model before it is loaded."""
        video = Video.objects.create()

        def body(claim):
            assert process_lazily(video.pk) == 2  # another lock, and so a newer claim
            return "done"

        with pytest.raises(StaleClaim):
            process(video.pk, body)
        assert states(video) == ("ready", 0, 2)


class TestSkips:
    @pytest.mark.parametrize(
        ("values", "state"),
        [({"status": "ready"}, "ready"), ({"hls_file": "x.m3u8"}, "uploading"), (None, None)],
        ids=["wrong state", "excluded", "no such row"],
    )
    def test_a_row_that_is_not_claimable_is_skipped_with_its_state(self, values, state, caplog):
        reason = "missing" if values is None else "invalid_state"
        caplog.set_level(logging.INFO, "django_tasklock")
        pk = 4242 if values is None else Video.objects.create(**values).pk
        with heard(claim_rejected) as told:
            skipped = process(pk, lambda claim: pytest.fail("the body ran"))
        assert skipped == {"status": "skipped", "reason": reason, "name": f"video:{pk}", "state": state}
        assert json.loads(json.dumps(skipped)) == skipped
        assert [(one["pk"], one["state"]) for one in told] == [(pk, state)]
        assert [record.levelname for record in caplog.records] == ["INFO"]
        assert not held(f"video:{pk}")

    @pytest.mark.parametrize(("day", "state"), [(date(2026, 2, 25), "2026-02-25"), (None, None)])
    def test_a_state_that_json_does_not_know(self, day, state):
        ticket = Ticket.objects.create(day=day)
        guard = StateGuard(field="day", claim_from=[date(2026, 1, 1)], claim_as=date(2026, 1, 2))

        @model_lock(Ticket, "ticket:{pk}", guard=guard)
        def work(pk):
            pytest.fail("the body ran")

        assert json.loads(json.dumps(work(ticket.pk)))["state"] == state

    def test_or_it_raises(self):
        video = Video.objects.create(status="ready")

        @model_lock(Video, "raising:{pk}", guard=GUARD, on_conflict="wait")
        def work(pk):
            pytest.fail("the body ran")

        with pytest.raises(GuardRejected) as caught:
            work(video.pk)
        assert caught.value.state == "ready"
        assert not held(f"raising:{video.pk}")

    def test_a_busy_lock_does_not_touch_the_row(self, django_assert_num_queries):
        video = Video.objects.create()
        with held_by_another(f"video:{video.pk}", timeout=100), django_assert_num_queries(0):
            skipped = process(video.pk)
        assert (skipped["reason"], skipped["time_left"]) == ("already_processing", pytest.approx(100, abs=60))
        assert states(video) == ("uploading", 0, 0)


class TestEndings:
    @pytest.mark.parametrize(
        ("error", "state"),
        [
            (ValueError("codec"), "failed"),
            (TaskLockError("something of ours"), "failed"),
            (LockLost("while it ran"), "failed"),
            (ExceptionGroup("two", [ValueError(), OSError()]), "failed"),
            (KeyboardInterrupt(), "processing"),
            (SystemExit(1), "processing"),
            (GeneratorExit(), "processing"),
            (asyncio.CancelledError(), "processing"),
        ],
        ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else value,
    )
    def test_an_error_fails_it_and_a_stop_from_outside_gives_it_back(self, error, state):
        video = Video.objects.create()
        with pytest.raises(type(error)) as caught:
            process(video.pk, fails(error))
        assert caught.value is error
        assert not hasattr(error, "__notes__")
        assert states(video) == (state, 0, 1)
        assert not held(f"video:{video.pk}")
        if state == "processing":
            assert process(video.pk) == "done"

    @pytest.mark.parametrize("result", [None, False, ValueError("returned, not raised")], ids=repr)
    def test_whatever_it_returns_is_a_success(self, result):
        """Gold standard 8.32: only an exception is a failure."""
        video = Video.objects.create()
        assert process(video.pk, lambda claim: result) is result
        assert states(video) == ("ready", 0, 1)

    @pytest.mark.parametrize("raises", [None, ValueError("codec"), SystemExit(1)], ids=["returns", "raises", "stopped"])
    @pytest.mark.parametrize("model", [Video, PlainVideo])
    @pytest.mark.parametrize(
        ("end", "state", "why"),
        [
            (lambda claim: claim.fail(), "failed", "failed"),
            (lambda claim: claim.finish(), "ready", "done"),
            (lambda claim: claim.give_back(), "uploading", "given_back"),
            (lambda claim: claim.update(status="failed"), "failed", "updated"),
            (lambda claim: claim.update(status=Value("ready")), "ready", "updated"),
        ],
        ids=["fail", "finish", "give_back", "failed", "ready"],
    )
    def test_how_a_body_has_ended_its_row_itself_stands(
        self, end, state, why, model, raises, django_capture_on_commit_callbacks
    ):
        """An exception that is no retry does not change it either; and it is told once."""
        video = model.objects.create()

        @model_lock(model, "ending:{pk}", guard=ONCE)
        def work(pk):
            end(current_claim())
            current_claim().update(progress=40)
            if raises:
                raise raises
            return {"status": "error"}

        expected = pytest.raises(type(raises)) if raises else nullcontext()
        with heard(state_changed) as told, django_capture_on_commit_callbacks(execute=True), expected:
            assert work(video.pk) == {"status": "error"}
        video.refresh_from_db()
        assert (video.status, video.progress, getattr(video, "lock_token", "")) == (state, 40, "")
        assert [one["why"] for one in told] == ["claimed", why]
        assert not hasattr(raises, "__notes__")

    def test_so_does_what_it_saved_in_a_fenced_transaction(self):
        video = Video.objects.create()

        def body(claim):
            with claim.transaction() as row:
                row.status = "failed"
                row.save()

        process(video.pk, body)
        video.refresh_from_db()
        assert (video.status, video.lock_token) == ("failed", "")

    @pytest.mark.parametrize("model", [Video, PlainVideo])
    def test_a_state_on_its_way_is_no_end(self, model):
        video = model.objects.create()

        @model_lock(model, "transcoding:{pk}", guard=GUARD)
        def work(pk):
            current_claim().update(status="failed")
            current_claim().update(status="transcoding")

        work(video.pk)
        assert states(video)[0] == "ready"

    def test_nor_is_an_end_that_was_rolled_back(self):
        video = Video.objects.create()

        def body(claim):
            with suppress(OSError), claim.transaction():
                claim.fail()
                raise OSError

        process(video.pk, body)
        assert states(video)[0] == "ready"

    @pytest.mark.parametrize(("body", "state"), [(overtaken, PROCESSING), (finished, DONE), (remade, ANEW)])
    def test_a_success_that_was_overtaken_is_a_stale_claim_once(self, body, state):
        """By a newer claim, seen in the body or not; or the row was made anew, and is somebody else's."""
        video = Video.objects.create()
        with heard(claim_stale) as told, pytest.raises(StaleClaim, match="newer claim") as caught:
            process(video.pk, body)
        assert len(told) == 1
        assert not hasattr(caught.value, "__notes__")
        assert states(video) == state
        assert not held(f"video:{video.pk}")

    def test_what_it_writes_then_is_refused_without_an_alert(self, caplog):
        video = Video.objects.create()

        def body(claim):
            Video.objects.all().delete()
            claim.update(progress=99)

        with heard(claim_stale) as told, pytest.raises(StaleClaim, match=f"testapp.Video {video.pk} is gone") as caught:
            process(video.pk, body)
        assert told == []
        assert not hasattr(caught.value, "__notes__")
        assert not [record for record in caplog.records if record.levelno > logging.INFO]

    def test_overtaken_unawares_a_failure_stays_the_failure_that_it_was(self):
        video = Video.objects.create()

        def body(claim):
            Claim.take(Video, video.pk, GUARD, new_token())
            raise ValueError("codec")

        with heard(claim_stale) as told, pytest.raises(ValueError, match="codec") as caught:
            process(video.pk, body)
        (note,) = caught.value.__notes__
        assert note.startswith("its row was not marked: testapp.Video")
        assert len(told) == 1
        assert states(video) == ("processing", 0, 2)

    def test_another_rows_stale_claim_is_a_failure_of_this_one(self):
        video, other = Video.objects.create(), Video.objects.create()

        with pytest.raises(StaleClaim):
            process(video.pk, lambda claim: process(other.pk, overtaken))
        assert states(video) == ("failed", 0, 1)
        assert states(other) == ("processing", 0, 2)

    @pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # it is multi-threaded, as workers are
    @pytest.mark.django_db(transaction=True)  # or what the child writes is in a transaction that nobody commits
    def test_a_child_that_leaves_its_parents_body_closes_and_releases_nothing(self, settings):
        video = Video.objects.create()

        @model_lock(Video, "forking:{pk}", guard=ONCE)
        def work(pk):
            child = os.fork()
            if not child:
                raise SystemExit
            assert os.waitpid(child, 0)[1] == 0
            return states(video), held(f"forking:{pk}")

        here = os.getpid()
        for _ in in_store("redis", settings):
            try:
                seen = work(video.pk)
            finally:
                if os.getpid() != here:
                    os._exit(0)
            assert seen == (("processing", 0, 1), True)

    def test_nested_claims_are_restored(self):
        first, second = Video.objects.create(), Video.objects.create()

        def body(claim):
            assert process(second.pk, lambda inner: (inner.pk, current_claim() is inner)) == (second.pk, True)
            assert current_claim() is claim
            with pytest.raises(ValueError, match="codec"):
                process(Video.objects.create().pk, fails(ValueError("codec")))
            assert current_claim() is claim
            assert process(second.pk)["reason"] == "invalid_state"
            assert current_claim() is claim
            claim.update(progress=40)
            return "done"

        assert process(first.pk, body) == "done"
        assert (states(first), states(second)) == (("ready", 40, 1), ("ready", 0, 1))


@pytest.mark.django_db(transaction=True)
class TestOvertaken:
    """A lost its lock without noticing; B has it, the row, or both. Gold standard 8.1, 8.17."""

    @pytest.mark.parametrize("lose", [force_release_task_lock, lambda name: reset()], ids=["by force", "by a flush"])
    def test_the_first_changes_nothing_and_does_not_touch_the_lock_of_the_second(self, lose):
        video = Video.objects.create()
        name = f"video:{video.pk}"
        may_end, started = threading.Event(), threading.Event()

        def second(claim):
            started.set()
            assert may_end.wait(60)
            claim.update(progress=50)
            return "second"

        results = []

        def first(claim):
            lose(name)
            other.start()
            assert started.wait(60)
            for write in (lambda: claim.update(progress=99), claim.finish, claim.fail, claim.give_back):
                with pytest.raises(StaleClaim):
                    write()
            return "first"

        other = threading.Thread(target=lambda: results.append(elsewhere(lambda: process(video.pk, second))))
        with pytest.raises(StaleClaim):
            process(video.pk, first)
        assert held(name), "the second one's lock is its own"
        assert states(video) == ("processing", 0, 2)
        may_end.set()
        other.join(60)
        assert results == ["second"]
        assert states(video) == ("ready", 50, 2)
        assert not held(name)


@model_lock(Video, "async:{video_id}", pk="video_id", guard=GUARD)
async def process_async(video_id, body=None):
    return await body(current_claim()) if body else "done"


@pytest.mark.django_db(transaction=True)
class TestCoroutinesWithARow:
    def test_a_whole_call(self):
        video = Video.objects.create()

        async def body(claim):
            await claim.aupdate(progress=40)
            assert current_claim() is claim
            assert await sync_to_async(current_claim)() is claim
            assert await asyncio.create_task(self.elsewhere()) is claim
            await sync_to_async(current_claim().update)(hls_file="x")
            return "done"

        assert async_to_sync(process_async)(video.pk, body) == "done"
        assert states(video) == ("ready", 40, 1)
        assert async_to_sync(process_async)(video.pk)["reason"] == "invalid_state"

    @staticmethod
    async def elsewhere():
        return current_claim()

    @pytest.mark.django_db(transaction=False)
    def test_in_a_test_case(self):
        video = Video.objects.create()
        assert async_to_sync(process_async)(video.pk) == "done"
        assert states(video) == ("ready", 0, 1)

    def test_several_at_once_each_with_its_own_claim(self):
        videos = [Video.objects.create() for _ in range(4)]

        async def body(claim):
            await asyncio.sleep(0)
            mine = current_claim()
            await mine.aupdate(progress=mine.pk)
            return mine.pk

        async def several():
            return await asyncio.gather(*(process_async(video.pk, body) for video in videos))

        assert async_to_sync(several)() == [video.pk for video in videos]
        assert [states(video) for video in videos] == [("ready", video.pk, 1) for video in videos]

    def test_cancelled_in_the_body_it_is_given_back(self):
        video = Video.objects.create()

        async def cancel():
            started = asyncio.Event()

            async def body(claim):
                started.set()
                await asyncio.Event().wait()

            task = asyncio.create_task(process_async(video.pk, body))
            await started.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        async_to_sync(cancel)()
        assert states(video) == ("processing", 0, 1)
        assert not held(f"async:{video.pk}")
        assert async_to_sync(process_async)(video.pk) == "done"

    def test_cancelled_while_it_is_claiming_it_is_given_back(self, monkeypatch):
        """The thread that claims cannot be stopped: it must not leave a claim that nobody closes."""
        video = Video.objects.create()
        claiming, may_claim = threading.Event(), threading.Event()

        class Slow(Claim):
            def claim(self):
                claiming.set()
                assert may_claim.wait(60)
                super().claim()

        monkeypatch.setattr(running, "Claim", Slow)
        guard = StateGuard(claim_from=["uploading"], claim_as="processing")

        @model_lock(Video, "slow:{pk}", guard=guard)
        async def work(pk):
            pytest.fail("the body ran")

        async def cancel():
            task = asyncio.create_task(work(video.pk))
            assert await asyncio.to_thread(claiming.wait, 60)
            task.cancel()
            await asyncio.sleep(0)
            may_claim.set()
            with pytest.raises(asyncio.CancelledError):
                await task

        async_to_sync(cancel)()
        assert states(video) == ("uploading", 0, 1)
        assert not held(f"slow:{video.pk}")

    def test_cancelled_while_it_is_closing_the_row_is_closed_before_the_lock_is_free(self, monkeypatch):
        video = Video.objects.create()
        closing, may_close, order = threading.Event(), threading.Event(), []

        class Slow(Claim):
            def finish(self, **how):
                closing.set()
                assert may_close.wait(60)
                super().finish(**how)
                order.append("closed")

        monkeypatch.setattr(running, "Claim", Slow)

        async def cancel():
            task = asyncio.create_task(process_async(video.pk))
            assert await asyncio.to_thread(closing.wait, 60)
            task.cancel()
            await asyncio.sleep(0)
            may_close.set()
            with pytest.raises(asyncio.CancelledError):
                await task

        def released(**details):
            order.append("released")

        lock_released.connect(released)
        try:
            async_to_sync(cancel)()
        finally:
            lock_released.disconnect(released)
        assert order == ["closed", "released"]
        assert states(video) == ("ready", 0, 1)
