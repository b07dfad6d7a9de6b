"""A decorated Celery task runs under its lock and on its claimed row, which its retries can claim again and others not.

It is run as a worker runs it: from a message, through Celery's own tracer.
"""

from __future__ import annotations

import contextlib
import json
import os

import pytest
from celery import Celery, Task, shared_task
from celery.app.trace import build_tracer
from celery.exceptions import Ignore, Reject, Retry, SoftTimeLimitExceeded
from celery.signals import task_retry
from django.db import transaction
from django.db.models import F
from kombu.serialization import dumps

from django_tasklock import (
    Claim,
    StaleClaim,
    StateGuard,
    TaskLock,
    TaskLockError,
    current_claim,
    current_lock,
    model_lock,
    task_lock,
)
from django_tasklock.backends import get_backend
from django_tasklock.backends.memory import reset
from django_tasklock.exceptions import TransactionOpen
from django_tasklock.guards.guard import registered
from django_tasklock.locks.holder import this_machine
from django_tasklock.names import Names
from django_tasklock.operations.guarded_rows import lock_name
from django_tasklock.types import AcquireRequest, Grant
from tests.support.guards import GUARD, MEMORY, ONCE, elsewhere, new_token, states
from tests.testapp.models import Video

pytestmark = [pytest.mark.database, pytest.mark.django_db]

DEAD = f"{this_machine()}:0"
"""What the holder of a lock says of a process that has ended: pid 1 began at another time."""
QUEUE = f"tasklock-tests-{os.getpid()}"

app = Celery("tests", broker="memory://", set_as_current=True)
app.conf.task_default_queue = QUEUE
app.conf.task_ignore_result = True


@pytest.fixture(autouse=True)
def _locks_in_memory(settings):
    settings.TASKLOCK = MEMORY
    reset()


@pytest.fixture(autouse=True)
def _nothing_left_behind():
    yield
    app.conf.update(task_always_eager=False, task_eager_propagates=False)
    with app.connection_for_write() as connection, connection.SimpleQueue(QUEUE) as queue:
        queue.clear()


@pytest.fixture
def task():
    """``task(body, ...)``: a task of the test's own with these options."""
    names = []

    def make(body, *, lock=video_lock, **options):
        names.append(f"tests.own-{len(names)}")
        return app.task(lock(body), name=names[-1], **options)

    yield make
    for name in names:
        del app.tasks[name]


def work_off():
    """Run the next message as a worker does, whatever its ETA: (state, result), or ``None`` if there is none."""
    with app.connection_for_read() as connection, connection.SimpleQueue(QUEUE) as queue:
        try:
            message = queue.get(block=False)
        except queue.Empty:
            return None
        message.ack()
    args, kwargs, _ = message.payload
    task = app.tasks[message.headers["task"]]
    request = {**message.headers, "hostname": "worker@tests", "is_eager": False, "delivery_info": {}}
    outcome = build_tracer(task.name, task, app=app)(message.headers["id"], args, kwargs, request)
    if outcome.info is None:
        return "SUCCESS", outcome.retval
    return outcome.info.state, outcome.info.retval


def published() -> int:
    """How many messages wait."""
    with app.connection_for_read() as connection, connection.SimpleQueue(QUEUE) as queue:
        return queue.qsize()


bodies: dict[str, object] = {}
"""What the tasks below do; each test puts in its own."""


def run(name, *arguments):
    return bodies[name](*arguments)


video_lock = model_lock(Video, "celery-video:{video_id}", pk="video_id", guard=GUARD, timeout=7200)


@shared_task(bind=True, max_retries=2, default_retry_delay=60)
@video_lock
def process_video(self, video_id, quality="hd"):
    return run("process", self, video_id)


@app.task(autoretry_for=(ValueError,), max_retries=2, retry_backoff=True)
@video_lock
def process_again(video_id):
    return run("again", video_id)


@app.task
@task_lock("celery-report:{day}")
def report(day, *, pages=3):
    return run("report", day)


class Transcode(Task):
    name = "tests.transcode"

    @video_lock
    def run(self, video_id):
        return run("transcode", self, video_id)


transcode = app.register_task(Transcode())


@app.task
def unlocked():
    return run("unlocked")


class TestTasks:
    def test_published_and_run(self):
        video = Video.objects.create()
        inside = []

        def body(task, video_id):
            inside.append((task.request.id, video_id, current_claim().pk, states(video)[0]))
            current_claim().update(progress=40)
            return {"status": "success", "video_id": video_id}

        bodies["process"] = body
        first, again = process_video.delay(video.pk), process_video.delay(video_id=video.pk)
        assert work_off() == ("SUCCESS", {"status": "success", "video_id": video.pk})
        assert states(video) == ("ready", 40, 1)
        state, skipped = work_off()
        assert (state, skipped["status"], skipped["reason"]) == ("SUCCESS", "skipped", "invalid_state")
        assert inside == [(first.id, video.pk, video.pk, "processing")]
        assert again.id != first.id

    @pytest.mark.parametrize("how", ["direct", "apply", "eager delay", "class"])
    def test_run_in_this_process(self, how):
        video = Video.objects.create()
        bodies["process"] = bodies["transcode"] = lambda task, video_id: (type(task).__name__, current_claim().pk)
        app.conf.task_always_eager = how == "eager delay"
        result = {
            "direct": lambda: process_video(video.pk),
            "apply": lambda: process_video.apply((video.pk,)).get(),
            "eager delay": lambda: process_video.delay(video.pk).get(),
            "class": lambda: transcode.apply((video.pk,)).get(),
        }[how]()
        assert result == ("Transcode" if how == "class" else "process_video", video.pk)
        assert states(video) == ("ready", 0, 1)

    def test_the_arguments_are_checked_when_it_is_published(self):
        for publish in (
            lambda: process_video.delay(),
            lambda: process_video.delay(1, 2, 3),
            lambda: process_video.apply_async(kwargs={"video": 1}),
            lambda: process_video.delay(1, colour="red"),
            lambda: report.delay("monday", 5),  # its ``pages`` is keyword-only
        ):
            with pytest.raises(TypeError):
                publish()
        process_video.delay(1)
        process_video.delay(video_id=1)
        report.delay("monday", pages=5)
        assert published() == 3

    def test_the_holder_is_the_task(self):
        video = Video.objects.create()
        seen = []

        def body(task, video_id):
            info = process_video.lock.info(video_id=video_id)
            skipped = elsewhere(lambda: process_video(video_id))
            seen.append((info.holder, info.task, info.task_id, skipped["holder"]))

        bodies["process"] = body
        published_as = process_video.delay(video.pk)
        work_off()
        ((holder, task, task_id, told),) = seen
        assert (task, task_id) == (process_video.name, published_as.id)
        assert holder.endswith(f":{os.getpid()} ({process_video.name}[{published_as.id}])")
        assert told == holder

    def test_a_skip_can_be_a_result(self):
        bodies["report"] = lambda day: pytest.fail("the body ran")
        with TaskLock("celery-report:monday"):
            skipped = elsewhere(lambda: report("monday"))
        assert skipped["reason"] == "already_processing"
        assert json.loads(dumps(skipped, serializer="json")[2]) == skipped

    def test_a_row_that_was_deleted_after_the_task_was_published(self):
        """Gold standard 8.29: the name needs no row, and a row that is gone may be one that is not committed yet."""
        video = Video.objects.create()
        process_video.delay(video.pk)
        name = f"celery-video:{video.pk}"
        video.delete()
        assert work_off()[0] == "RETRY"
        assert not TaskLock(name).locked()


class TestTheLockOfATask:
    @pytest.mark.parametrize("task", [process_video, process_again, transcode], ids=lambda task: task.name)
    def test_answers_before_one_publishes(self, task):
        assert task.lock.name(video_id=42) == "celery-video:42"
        assert not task.lock.is_locked(video_id=42)
        with TaskLock("celery-video:42"):
            assert task.lock.is_locked(video_id=42)
            assert task.lock.info(video_id=42).name == "celery-video:42"
            assert not task.lock.is_locked(video_id=43)
            assert task.lock.is_locked(42)  # a bound task's ``self`` is no argument of its message
            assert not task.lock.is_locked(43)

    def test_a_name_that_is_wrong_is_an_error_not_a_no(self):
        with pytest.raises(TaskLockError, match="also needs video_id"):
            process_video.lock.is_locked(video=42)

    def test_a_task_without_a_lock_says_so(self):
        assert not hasattr(unlocked, "lock")
        with pytest.raises(AttributeError, match="decorate its function with task_lock or model_lock"):
            _ = unlocked.lock

    def test_a_lock_is_not_put_around_a_task(self):
        for task in (process_video, unlocked, transcode):
            with pytest.raises(TaskLockError, match="already is a task: put the lock decorator below"):
                video_lock(task)


class TestRetries:
    """Whether the row is failed, or left so that the next try can claim it. Gold standard 8.22, 8.23."""

    def test_retry_with_tries_left(self):
        video = Video.objects.create()
        tries = []

        def body(task, video_id):
            tries.append((task.request.retries, current_claim().epoch))
            try:
                raise ValueError("codec")
            except ValueError as error:
                raise task.retry(exc=error)  # noqa: B904  # as everybody writes it

        bodies["process"] = body
        process_video.delay(video.pk)
        for _ in range(2):
            state, _ = work_off()
            assert state == "RETRY"
            assert states(video)[0] == "processing"
            assert not process_video.lock.is_locked(video_id=video.pk)
        state, error = work_off()
        assert (state, str(error)) == ("FAILURE", "codec")
        assert states(video) == ("failed", 0, 3)
        assert tries == [(0, 1), (1, 2), (2, 3)]
        assert published() == 0

    def test_a_guard_whose_working_state_is_not_claimable_goes_back_to_one_that_is(self, task):
        video = Video.objects.create()

        def body(self, pk):
            if not self.request.retries:
                raise self.retry(countdown=0)
            return "done"

        lock = model_lock(Video, "celery-once:{pk}", guard=ONCE)
        task(body, lock=lock, bind=True, max_retries=1).delay(video.pk)
        assert work_off()[0] == "RETRY"
        assert states(video) == ("uploading", 0, 1)
        assert work_off() == ("SUCCESS", "done")
        assert states(video) == ("ready", 0, 2)

    def test_autoretry_is_over_before_the_message_is_sent(self):
        """Gold standard 8.22: the next try must not meet the lock of the one that asked for it."""
        video = Video.objects.create()
        found = []

        def retrying(request, **details):
            found.append((states(video)[0], process_again.lock.is_locked(video_id=video.pk)))

        def body(video_id):
            raise ValueError("codec")

        bodies["again"] = body
        process_again.delay(video.pk)
        task_retry.connect(retrying)
        try:
            work_off()
        finally:
            task_retry.disconnect(retrying)
        assert found == [("processing", False)]

    def test_eagerly_the_tries_follow_each_other(self):
        video = Video.objects.create()
        epochs = []

        def body(task, video_id):
            epochs.append(current_claim().epoch)
            if task.request.retries < 2:
                raise task.retry(exc=ValueError("codec"))
            return "done"

        bodies["process"] = body
        assert process_video.apply((video.pk,)).get() == "done"
        assert epochs == [1, 2, 3]
        assert states(video) == ("ready", 0, 3)

    @pytest.mark.parametrize(
        ("error", "state"),
        [
            (KeyError("not among those to retry for"), "failed"),
            (ValueError("to retry for"), "processing"),
            (UnicodeError("spared"), "failed"),
            (SoftTimeLimitExceeded(), "failed"),
            (Ignore(), "failed"),
            (Reject("poison", requeue=False), "failed"),
            (Reject("busy machine", requeue=True), "processing"),
            (Retry("asked for"), "processing"),
        ],
        ids=lambda value: type(value).__name__ if isinstance(value, Exception) else value,
    )
    def test_what_becomes_of_the_row(self, error, state, task):
        video = Video.objects.create()

        def body(video_id):
            raise error

        task(body, autoretry_for=(ValueError,), dont_autoretry_for=(UnicodeError,), max_retries=1).delay(video.pk)
        work_off()
        assert states(video)[0] == state
        assert (published() == 1) is (type(error) is ValueError)

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
    def test_every_way_to_say_how_often(self, options, tries, task):
        video = Video.objects.create()

        def body(video_id):
            raise ValueError("codec")

        task(body, autoretry_for=(ValueError,), **options).delay(video.pk)
        found = [(work_off()[0], states(video)[0]) for _ in range(tries)]
        assert found == [("RETRY", "processing")] * (tries - 1) + [("FAILURE", "failed")]
        assert published() == 0

    @pytest.mark.parametrize(
        ("error", "state"),
        [(Ignore(), "failed"), (Reject("poison", requeue=False), "processing")],
        ids=["Ignore", "Reject"],
    )
    def test_to_retry_for_everything_is_not_to_retry_for_ignore(self, error, state, task):
        video = Video.objects.create()

        def body(video_id):
            raise error

        task(body, autoretry_for=(Exception,), max_retries=1).delay(video.pk)
        work_off()
        assert states(video)[0] == state
        assert (published() == 1) is (state == "processing")

    def test_replaced_its_work_goes_on_in_another_message(self, task):
        video = Video.objects.create()

        def body(self, video_id, pages=2):
            current_claim().update(progress=F("progress") + 1)
            if pages > 1:
                raise self.replace(self.s(video_id, pages - 1))

        task(body, bind=True).delay(video.pk)
        assert (work_off()[0], states(video)) == ("IGNORED", ("processing", 1, 1))
        assert (work_off()[0], states(video)) == ("SUCCESS", ("ready", 2, 2))

    def test_a_direct_call_is_not_retried_and_its_row_is_failed(self):
        video = Video.objects.create()

        def body(video_id):
            raise ValueError("codec")

        bodies["again"] = body
        with pytest.raises(ValueError, match="codec"):
            process_again(video.pk)
        assert states(video)[0] == "failed"
        assert published() == 0

    def test_called_by_a_task_that_will_be_retried_it_can_be_claimed_again(self, task):
        video = Video.objects.create()

        def body(task, video_id):
            raise ValueError("codec")

        def outer(video_id):
            return process_video(video_id)

        bodies["process"] = body
        task(outer, lock=task_lock("outer"), autoretry_for=(ValueError,), max_retries=1).delay(video.pk)
        assert (work_off()[0], states(video)[0]) == ("RETRY", "processing")
        assert (work_off()[0], states(video)[0]) == ("FAILURE", "failed")

    def test_called_by_a_task_that_retries_for_its_error_it_can_be_claimed_again(self, task):
        """As most do it: ``raise self.retry(exc=error)``, in the task, where the helper's error is caught."""
        videos = [Video.objects.create() for _ in range(3)]
        seen = []

        def body(task, video_id):
            raise KeyError("codec")

        def outer(self, *ids):
            for pk in ids:
                with contextlib.suppress(KeyError):
                    process_video(pk)
            Claim.take(
                Video, ids[-1], StateGuard(claim_from=["failed"], claim_as="processing"), new_token()
            )  # by somebody else, meanwhile
            seen.extend(states(video)[0] for video in videos)
            raise self.retry(countdown=0)

        bodies["process"] = body
        task(outer, lock=lambda body: body, bind=True).delay(*(video.pk for video in videos))
        assert work_off()[0] == "RETRY"
        assert seen == ["failed", "failed", "processing"]
        assert [states(video)[::2] for video in videos] == [("processing", 1), ("processing", 1), ("processing", 2)]

    def test_a_stale_claim_is_never_retried(self, task):
        video = Video.objects.create()

        def body(video_id):
            Claim.take(Video, video_id, GUARD, new_token())
            current_claim().update(progress=99)

        task(body, autoretry_for=(Exception,)).delay(video.pk)
        state, error = work_off()
        assert (state, type(error)) == ("FAILURE", StaleClaim)
        assert published() == 0
        assert states(video) == ("processing", 0, 2)


class TestTransactions:
    def test_eagerly_inside_atomic_it_says_what_to_do(self):
        video = Video.objects.create()
        bodies["process"] = lambda task, video_id: pytest.fail("the body ran")
        app.conf.task_always_eager = True
        with transaction.atomic():
            result = process_video.delay(video.pk)
            assert isinstance(result.result, TransactionOpen)
            assert "delay_on_commit" in str(result.result)
            app.conf.task_eager_propagates = True
            with pytest.raises(TransactionOpen, match="do not run tasks eagerly inside a transaction"):
                process_video.delay(video.pk)
        assert states(video) == ("uploading", 0, 0)
        assert not process_video.lock.is_locked(video_id=video.pk)

    @pytest.mark.django_db(transaction=True)
    def test_delay_on_commit_as_it_says(self):
        video = Video.objects.create()
        bodies["process"] = lambda task, video_id: "done"
        app.conf.task_always_eager = True
        with transaction.atomic():
            process_video.delay_on_commit(video.pk)
            assert states(video) == ("uploading", 0, 0)
        assert states(video) == ("ready", 0, 1)


class TestSeveralNames:
    """All that a task locks is locked with one token, which is in the row."""

    def test_a_row_and_a_second_name(self, task):
        both = model_lock(Video, ["celery-video:{video_id}", "celery-index:{video_id}"], pk="video_id", guard=GUARD)
        video = Video.objects.create()

        def body(video_id):
            found = current_lock()
            assert found.names == (f"celery-index:{video.pk}", f"celery-video:{video.pk}")
            assert found.token == Video.objects.get(pk=video_id).lock_token
            guarded = [one for one in registered() if one.locked is body_task.run.lock]
            assert [lock_name(one, video_id) for one in guarded] == [found.names[0]]
            current_claim().update(progress=40)

        body_task = task(body, lock=both)
        body_task.delay(video.pk)
        assert work_off()[0] == "SUCCESS"
        assert states(video) == ("ready", 40, 1)

    def test_what_a_dead_worker_left_is_taken_over(self, task):
        def body(day):
            return current_lock().names

        name = "tests.own-0"
        report_both = task(body, lock=task_lock(["a:{day}", "b:{day}"]))
        sent = report_both.delay(7)
        dead = {"host": "h", "pid": 1, "boot": "another", "task": name, "task_id": sent.id, "proc": DEAD}
        request = AcquireRequest(Names(("a:7", "b:7")), new_token(), 60_000, 3_600_000, json.dumps(dead))
        assert isinstance(get_backend().several.acquire(request), Grant)
        assert work_off() == ("SUCCESS", ("a:7", "b:7"))
