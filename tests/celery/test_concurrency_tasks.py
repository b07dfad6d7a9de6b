"""Of a task or function with a limiter no more than the limit run at once, and what finds no permit holds nothing.

It does what ``on_conflict`` says: by default a task comes again, and a function waits.
"""

from __future__ import annotations

import asyncio
import inspect

import pytest
from celery import chord, group

from django_tasklock import (
    ConcurrencyLimiter,
    TaskLockAcquireError,
    concurrency_limited,
    current_limiter,
    get_lock_info,
    model_lock,
    task_lock,
)
from tests.support.celery_site import limited_tasks
from tests.support.celery_site.journal import most_at_once
from tests.support.celery_site.redelivery_tasks import collect
from tests.support.current import here
from tests.support.guards import GUARD, elsewhere
from tests.support.once_app import once_app
from tests.testapp.models import Video

pytest_plugins = ["tests.support.celery_site.fixtures", "tests.support.redis_fixtures"]
pytestmark = [pytest.mark.redis]
SITE_TASKS = ["tests.support.celery_site.limited_tasks", "tests.support.celery_site.redelivery_tasks"]


class TestOnWorkers:
    def test_tasks_come_again_until_they_have_a_permit_and_are_never_more_than_the_limit(self, celery_site):
        """By default; with ``max_retries=0``, so no retry of the task is spent."""
        celery_site.worker(concurrency=4)
        results = [celery_site.publish("limited", f"k{number}", 0.1) for number in range(8)]
        assert [celery_site.outcome(result)[0] for result in results] == ["SUCCESS"] * 8
        assert most_at_once(celery_site.events()) == 2
        assert len(celery_site.events("start")) == 8
        assert ConcurrencyLimiter("transcode", 2).info().used == 0

    def test_what_does_not_wait(self, celery_site):
        """One after the other, while the only permit is taken."""
        celery_site.worker(concurrency=3)
        first = celery_site.publish("limited_skip", "a", until=celery_site.gate())
        celery_site.started("a")

        state, value = celery_site.outcome(celery_site.publish("limited_skip", "b"))
        assert state == "SUCCESS"
        assert (value["status"], value["reason"], value["name"]) == ("skipped", "limit_reached", "single")
        assert first.id in value["holder"]

        # Inside of another task the message is not the function's to put aside.
        for name in ("limited_raise", "inside_limited"):
            state, error = celery_site.outcome(celery_site.publish(name, "b"))
            assert state == "FAILURE"
            assert "none of 1 permits is free" in str(error)

        # A member of a chord without a result would leave the others waiting, so a rejection is a skip there.
        task = limited_tasks.limited_reject
        state, value = celery_site.outcome(chord(group(task.s("b"), task.s("c")), collect.s(key="c"))())
        assert state == "SUCCESS"
        assert str(value).count("limit_reached") == 2

        rejected = celery_site.publish("limited_reject", "b")
        celery_site.wait_until(lambda: rejected.id in {one.task_id for one in celery_site.events("conflict", "reject")})
        assert celery_site.waiting() == 0
        assert not celery_site.events("start", key="b")

    def test_the_permit_of_a_child_that_is_killed(self, celery_site):
        """With a lease of an hour: the message that comes back frees it."""
        celery_site.configure(lease=3600, visibility_timeout=1)
        worker = celery_site.worker(concurrency=2)
        gate = celery_site.gate()
        back = celery_site.publish("limited_skip", "back", until=gate)
        worker.kill_one(celery_site.started("back").pid)
        gate.open()
        assert celery_site.outcome(back) == ("SUCCESS", {"status": "success", "key": "back"})
        assert ConcurrencyLimiter("single", 1).info().used == 0


@pytest.mark.database
@pytest.mark.django_db(transaction=True)
def test_neither_a_lock_nor_a_row_nor_a_slot_is_held_by_what_finds_no_permit(name):
    """Gold standard 8.26: it comes again, later each time, and has spent no retry of its own."""
    with once_app() as app:
        body = concurrency_limited(name, 1)(lambda pk: "ran")
        task = app.task(model_lock(Video, name + ":{pk}", guard=GUARD)(body), base=app.app.Task, max_retries=0)
        video = Video.objects.create()
        task.delay(video.pk)
        pauses = []
        with ConcurrencyLimiter(name, 1):
            for _ in range(7):
                state, retry = elsewhere(app.run)
                assert (state, get_lock_info(f"{name}:{video.pk}")) == ("RETRY", None)
                assert Video.objects.get().status == GUARD.retry
                pauses.append(retry.when)
        assert 1 <= pauses[0] <= 1.25
        assert pauses[0] < pauses[2] < pauses[5]
        assert pauses[6] <= 37.5
        assert app.run() == ("SUCCESS", "ran")


class TestFunctions:
    def test_a_function_waits_by_default_and_knows_its_limiter(self, name):
        @concurrency_limited(name + ":{site}", 1)
        def work(site, depth=0):
            limiter = current_limiter()
            assert limiter.held
            assert work.limiter.info(site=site).used == 1
            return work(site, depth + 1) if depth < 2 else limiter.name

        assert work.limiter.name(site="a") == f"{name}:a"
        assert work("a") == f"{name}:a"
        assert work.limiter.info(site="a").used == 0
        assert list(inspect.signature(work).parameters) == ["site", "depth"]
        assert here(current_limiter) is None

    def test_coroutines_too(self, name):
        inside = most = 0

        @concurrency_limited(name, 2)
        async def work():
            nonlocal inside, most
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0.005)
            inside -= 1

        async def main():
            await asyncio.gather(*(work() for _ in range(8)))

        asyncio.run(main())
        assert most == 2

    def test_skip_and_a_wait_that_is_over_and_words_for_messages(self, name):
        with ConcurrencyLimiter(name, 1):
            skips = concurrency_limited(name, 1, on_conflict="skip")(lambda: "ran")
            assert elsewhere(skips)["reason"] == "limit_reached"
            for options in ({"blocking_timeout": 0.02}, {"on_conflict": "retry"}):
                with pytest.raises(TaskLockAcquireError):
                    elsewhere(concurrency_limited(name, 1, **options)(lambda: "ran"))

    def test_the_permit_goes_with_the_body_that_raises(self, name):
        @concurrency_limited(name, 1)
        @task_lock(name)
        def work():
            raise ZeroDivisionError

        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                work()
        assert work.limiter.info().used == 0
        assert not work.lock.is_locked()
