"""A decorated Celery task runs under its lock and on its claimed row, which its retries can claim again and others not.

It is run as a worker runs it: from a message, through Celery's own tracer.
"""

from __future__ import annotations

import contextlib
import json
import os

import pytest
from celery import Task, chord
from celery.exceptions import Ignore, Reject, Retry, SoftTimeLimitExceeded
from celery.signals import task_retry
from django.db import transaction
from django.db.models import F

from django_tasklock import (
    Claim,
    StaleClaim,
    StateGuard,
    TaskLockError,
    current_claim,
    current_lock,
    model_lock,
    task_lock,
)
from django_tasklock.backends import get_backend
from django_tasklock.exceptions import TransactionOpen
from django_tasklock.locks.holder import this_machine
from django_tasklock.names import Names
from django_tasklock.types import AcquireRequest, Grant
from tests.support.guards import GUARD, ONCE, elsewhere, new_token, states
from tests.testapp.models import Video

pytest_plugins = ["tests.support.once_fixtures"]
pytestmark = [pytest.mark.database, pytest.mark.django_db]

video_lock = model_lock(Video, "celery-video:{video_id}", pk="video_id", guard=GUARD, timeout=7200)
report_lock = task_lock("celery-report:{day}")


@pytest.fixture
def task(app):
    """``task(body, ...)``: one with a locked row, or another lock, and these options of Celery's."""

    def make(body, *, lock=video_lock, **options):
        if not body.__name__.isidentifier():
            body.__name__ = "body"
        options = {"base": app.app.Task, "max_retries": 2, "name": f"tests.own-{len(app.app.tasks)}", **options}
        return app.task(lock(body), **options)

    return make


def failing(error):
    """A body of a task that raises it."""

    def body(video_id):
        raise error

    return body


class TestTasks:
    def test_published_and_run(self, app, task):
        video = Video.objects.create()
        inside = []

        def body(self, video_id):
            info = process.lock.info(video_id=video_id)
            told = elsewhere(lambda: process(video_id))["holder"]
            inside.append((self.request.id, current_claim().pk, states(video)[0], info.task, info.task_id))
            assert info.holder == told
            assert told.endswith(f":{os.getpid()} ({process.name}[{self.request.id}])")
            current_claim().update(progress=40)
            return {"status": "success", "video_id": video_id}

        process = task(body, bind=True)
        first, again = process.delay(video.pk), process.delay(video_id=video.pk)
        assert app.run() == ("SUCCESS", {"status": "success", "video_id": video.pk})
        assert states(video) == ("ready", 40, 1)
        state, skipped = app.run()
        assert (state, skipped["status"], skipped["reason"]) == ("SUCCESS", "skipped", "invalid_state")
        assert inside == [(first.id, video.pk, "processing", process.name, first.id)]
        assert again.id != first.id

    @pytest.mark.parametrize("how", ["direct", "apply", "eager delay", "class"])
    def test_run_in_this_process(self, app, task, how):
        video = Video.objects.create()
        process = task(lambda self, video_id: current_claim().pk, bind=True)

        class Transcode(Task):
            name = "tests.transcode"

            @video_lock
            def run(self, video_id):
                return current_claim().pk

        app.app.conf.task_always_eager = how == "eager delay"
        result = {
            "direct": lambda: process(video.pk),
            "apply": lambda: process.apply((video.pk,)).get(),
            "eager delay": lambda: process.delay(video.pk).get(),
            "class": lambda: app.app.register_task(Transcode()).apply((video.pk,)).get(),
        }[how]()
        assert result == video.pk
        assert states(video) == ("ready", 0, 1)

    def test_the_arguments_are_checked_when_it_is_published(self, app, task):
        process = task(lambda self, video_id, quality="hd": "ran", bind=True)
        report = task(lambda day, *, pages=3: "ran", lock=report_lock)
        for publish in (
            lambda: process.delay(),
            lambda: process.delay(1, 2, 3),
            lambda: process.apply_async(kwargs={"video": 1}),
            lambda: report.delay("monday", 5),  # its ``pages`` is keyword-only
        ):
            with pytest.raises(TypeError):
                publish()
        process.delay(1)
        process.delay(video_id=1)
        report.delay("monday", pages=5)
        assert len(app.all()) == 3

    def test_a_row_and_a_second_name_are_locked_with_the_token_in_the_row(self, app, task):
        video = Video.objects.create()

        def body(video_id):
            found = current_lock()
            assert found.names == (f"celery-index:{video.pk}", f"celery-video:{video.pk}")
            return found.token == Video.objects.get(pk=video_id).lock_token

        both = ["celery-video:{video_id}", "celery-index:{video_id}"]
        task(body, lock=model_lock(Video, both, pk="video_id", guard=GUARD)).delay(video.pk)
        assert app.run() == ("SUCCESS", True)

    def test_several_names_that_a_dead_worker_left_are_taken_over(self, app, task):
        both = task(lambda day: current_lock().names, lock=task_lock(["a:{day}", "b:{day}"]))
        sent = both.delay(7)
        dead = {"host": "h", "pid": 1, "boot": "another", "task": both.name, "task_id": sent.id}
        dead["proc"] = f"{this_machine()}:0"  # pid 1 began at another time
        request = AcquireRequest(Names(("a:7", "b:7")), new_token(), 60_000, 3_600_000, json.dumps(dead))
        assert isinstance(get_backend().several.acquire(request), Grant)
        assert app.run() == ("SUCCESS", ("a:7", "b:7"))


class TestTheLockOfATask:
    def test_a_task_without_a_lock_says_so(self, app):
        unlocked = app.task(base=Task)
        assert not hasattr(unlocked, "lock")
        with pytest.raises(AttributeError, match="decorate its function with task_lock or model_lock"):
            _ = unlocked.lock
        with pytest.raises(TaskLockError, match="already is a task: put the lock decorator below"):
            video_lock(unlocked)


class TestRetries:
    """Whether the row is failed, or left so that the next try can claim it. Gold standard 8.22, 8.23."""

    def test_retry_with_tries_left(self, app, task):
        video = Video.objects.create()
        tries = []

        def body(self, video_id):
            tries.append((self.request.retries, current_claim().epoch))
            try:
                raise ValueError("codec")
            except ValueError as error:
                raise self.retry(exc=error)  # noqa: B904  # as everybody writes it

        process = task(body, bind=True)
        process.delay(video.pk)
        for _ in range(2):
            assert app.run()[0] == "RETRY"
            assert states(video)[0] == "processing"
            assert not process.lock.is_locked(video_id=video.pk)
        state, error = app.run()
        assert (state, str(error)) == ("FAILURE", "codec")
        assert states(video) == ("failed", 0, 3)
        assert tries == [(0, 1), (1, 2), (2, 3)]
        assert app.take() is None

    def test_a_guard_whose_working_state_is_not_claimable_goes_back_to_one_that_is(self, app, task):
        video = Video.objects.create()

        def body(self, pk):
            if not self.request.retries:
                raise self.retry(countdown=0)
            return "done"

        task(body, lock=model_lock(Video, "celery-once:{pk}", guard=ONCE), bind=True).delay(video.pk)
        assert app.run()[0] == "RETRY"
        assert states(video) == ("uploading", 0, 1)
        assert app.run() == ("SUCCESS", "done")
        assert states(video) == ("ready", 0, 2)

    def test_a_body_that_goes_on_after_retry_ends_as_retried(self, app, task):
        """Celery stores a success for it, and that would end the next try: its row is ready, its work looks done."""
        video = Video.objects.create()

        def body(self, pk):
            if not self.request.retries:
                self.retry(countdown=0, throw=False)
                return "not yet"
            return "done"

        task(body, lock=model_lock(Video, "celery-later:{pk}", guard=ONCE), bind=True).delay(video.pk)
        assert app.run()[0] == "RETRY"
        assert states(video) == ("uploading", 0, 1)
        assert app.run(delivery_info={"redelivered": True}) == ("SUCCESS", "done")
        assert states(video) == ("ready", 0, 2)

    def test_autoretry_is_over_before_the_message_is_sent(self, app, task):
        """Gold standard 8.22: the next try must not meet the lock of the one that asked for it."""
        video = Video.objects.create()
        found = []

        def retrying(request, **details):
            found.append((states(video)[0], process.lock.is_locked(video_id=video.pk)))

        process = task(failing(ValueError("codec")), autoretry_for=(ValueError,), retry_backoff=True)
        process.delay(video.pk)
        task_retry.connect(retrying)
        try:
            app.run()
        finally:
            task_retry.disconnect(retrying)
        assert found == [("processing", False)]

    def test_eagerly_the_tries_follow_each_other(self, task):
        video = Video.objects.create()
        epochs = []

        def body(self, video_id):
            epochs.append(current_claim().epoch)
            if self.request.retries < 2:
                raise self.retry(exc=ValueError("codec"))
            return "done"

        assert task(body, bind=True).apply((video.pk,)).get() == "done"
        assert epochs == [1, 2, 3]
        assert states(video) == ("ready", 0, 3)

    @pytest.mark.parametrize(
        ("error", "retried_for", "state", "sent"),
        [
            (KeyError("not among those to retry for"), ValueError, "failed", 0),
            (ValueError("to retry for"), ValueError, "processing", 1),
            (UnicodeError("spared"), ValueError, "failed", 0),
            (SoftTimeLimitExceeded(), ValueError, "failed", 0),
            (Ignore(), Exception, "failed", 0),
            (Reject("poison", requeue=False), ValueError, "failed", 0),
            (Reject("poison", requeue=False), Exception, "processing", 1),
            (Reject("busy machine", requeue=True), ValueError, "processing", 0),
            (Retry("asked for"), ValueError, "processing", 0),
        ],
        ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
    )
    def test_what_becomes_of_the_row(self, app, task, error, retried_for, state, sent):
        video = Video.objects.create()
        retries = {"autoretry_for": (retried_for,), "dont_autoretry_for": (UnicodeError,)}
        task(failing(error), acks_late=True, **retries).delay(video.pk)
        app.run()
        assert states(video)[0] == state
        assert len(app.all()) == sent

    def test_what_was_acknowledged_early_is_not_requeued_and_its_row_is_failed(self, app, task):
        video = Video.objects.create()
        task(failing(Reject("busy machine", requeue=True))).delay(video.pk)
        app.run()
        assert states(video)[0] == "failed"

    @pytest.mark.parametrize(
        ("options", "tries"),
        [
            ({"max_retries": 0}, 1),
            ({"max_retries": 0, "retry_kwargs": {"max_retries": 2}}, 3),
            ({"max_retries": 5, "retry_kwargs": {"max_retries": 1}}, 2),
            ({"retry_kwargs": {"countdown": 1}, "max_retries": 1}, 2),
        ],
        ids=str,
    )
    def test_every_way_to_say_how_often(self, app, task, options, tries):
        video = Video.objects.create()
        task(failing(ValueError("codec")), autoretry_for=(ValueError,), **options).delay(video.pk)
        found = [(app.run()[0], states(video)[0]) for _ in range(tries)]
        assert found == [("RETRY", "processing")] * (tries - 1) + [("FAILURE", "failed")]
        assert app.take() is None

    def test_replaced_its_work_goes_on_in_another_message(self, app, task):
        video = Video.objects.create()

        def body(self, video_id, pages=2):
            current_claim().update(progress=F("progress") + 1)
            if pages > 1:
                raise self.replace(self.s(video_id, pages - 1))

        task(body, bind=True).delay(video.pk)
        assert (app.run()[0], states(video)) == ("IGNORED", ("processing", 1, 1))
        assert (app.run()[0], states(video)) == ("SUCCESS", ("ready", 2, 2))

    @pytest.mark.parametrize("within", ["itself", "a chain", "a helper"])
    def test_replaced_by_anything_else_it_is_refused_before_that_is_sent(self, app, task, within):
        """Nothing would ever close its row. Celery sends what replaces it with its callbacks, or in its chain."""
        video, other = Video.objects.create(), app.task(name="tests.other", base=Task)

        def body(self, video_id):
            raise self.replace(chord([other.si(1), other.si(2)], other.si()))

        mine = task(body, bind=True)
        if within == "a helper":
            work = video_lock(lambda video_id, mine: body(mine, video_id))
            mine = task(lambda self, video_id: work(video_id, self), bind=True, lock=task_lock("outer"))
        (mine.si(video.pk) | other.si() if within == "a chain" else mine.si(video.pk)).delay()
        state, error = app.run()
        assert (state, states(video)[0]) == ("FAILURE", "failed")
        assert isinstance(error, TaskLockError)
        assert "claim_from=['encoding', 'closing']" in str(error)
        assert app.take() is None

    def test_a_next_page_for_another_row_is_refused(self, app, task):
        videos = [Video.objects.create() for _ in range(2)]

        def body(self, video_id):
            raise self.replace(self.s(videos[1].pk))

        task(body, bind=True).delay(videos[0].pk)
        assert (app.run()[0], states(videos[0])[0]) == ("FAILURE", "failed")
        assert app.take() is None

    def test_a_next_page_in_a_chain_takes_its_place(self, app, task):
        video, other = Video.objects.create(), app.task(name="tests.other", base=Task)

        def body(self, video_id, pages=2):
            if pages > 1:
                raise self.replace(self.si(video_id, pages - 1))

        (task(body, bind=True).si(video.pk) | other.si()).delay()
        assert [app.run()[0], states(video)[0]] == ["IGNORED", "processing"]
        assert [app.run()[0], states(video)[0]] == ["SUCCESS", "ready"]
        assert app.run()[0] == "SUCCESS"

    def test_a_direct_call_is_not_retried_and_its_row_is_failed(self, app, task):
        video = Video.objects.create()
        with pytest.raises(ValueError, match="codec"):
            task(failing(ValueError("codec")), autoretry_for=(ValueError,))(video.pk)
        assert states(video)[0] == "failed"
        assert app.take() is None

    def test_called_by_a_task_that_will_be_retried_it_can_be_claimed_again(self, app, task):
        video, process = Video.objects.create(), video_lock(failing(ValueError("codec")))
        options = {"autoretry_for": (ValueError,), "max_retries": 1}
        task(lambda video_id: process(video_id), lock=task_lock("outer"), **options).delay(video.pk)
        assert (app.run()[0], states(video)[0]) == ("RETRY", "processing")
        assert (app.run()[0], states(video)[0]) == ("FAILURE", "failed")

    def test_called_by_a_task_that_retries_for_its_error_it_can_be_claimed_again(self, app, task):
        """As most do it: ``raise self.retry(exc=error)``, in the task, where the helper's error is caught."""
        videos = [Video.objects.create() for _ in range(3)]
        seen = []
        process = video_lock(failing(KeyError("codec")))

        def outer(self, *ids):
            for pk in ids:
                with contextlib.suppress(KeyError):
                    process(pk)
            by_another = StateGuard(claim_from=["failed"], claim_as="processing")
            Claim.take(Video, ids[-1], by_another, new_token())
            seen.extend(states(video)[0] for video in videos)
            raise self.retry(countdown=0)

        task(outer, lock=lambda body: body, bind=True).delay(*(video.pk for video in videos))
        assert app.run()[0] == "RETRY"
        assert seen == ["failed", "failed", "processing"]
        assert [states(video)[::2] for video in videos] == [("processing", 1), ("processing", 1), ("processing", 2)]

    def test_a_stale_claim_is_never_retried(self, app, task):
        video = Video.objects.create()

        def body(video_id):
            Claim.take(Video, video_id, GUARD, new_token())
            current_claim().update(progress=99)

        task(body, autoretry_for=(Exception,)).delay(video.pk)
        state, error = app.run()
        assert (state, type(error)) == ("FAILURE", StaleClaim)
        assert app.take() is None
        assert states(video) == ("processing", 0, 2)


@pytest.mark.django_db(transaction=True)
def test_eagerly_inside_atomic_it_says_what_to_do(app, task):
    video, process = Video.objects.create(), task(lambda video_id: "done")
    app.app.conf.task_always_eager = True
    with transaction.atomic():
        result = process.delay(video.pk).result
        assert isinstance(result, TransactionOpen)
        assert "do not run tasks eagerly inside a transaction" in str(result)
        assert "delay_on_commit" in str(result)
        assert not process.lock.is_locked(video_id=video.pk)
        process.delay_on_commit(video.pk)  # as it says
        assert states(video) == ("uploading", 0, 0)
    assert states(video) == ("ready", 0, 1)
