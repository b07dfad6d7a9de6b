"""``task_lock`` around functions, methods and coroutines, and what both decorators refuse."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import io
import json
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from asgiref.sync import async_to_sync
from django.http import FileResponse, HttpResponse, StreamingHttpResponse
from django.template.response import SimpleTemplateResponse

from django_tasklock import (
    ConcurrencyLimiter,
    TaskLock,
    TaskLockAcquireError,
    TaskLockError,
    concurrency_limited,
    current_claim,
    current_lock,
    model_lock,
    rate_limited,
    task_lock,
)
from django_tasklock.backends.memory import reset
from django_tasklock.locks.heartbeat import heartbeat
from django_tasklock.signals import lock_conflict, lock_released
from django_tasklock.types import Released
from tests.support.guards import GUARD, MEMORY, ONCE, elsewhere, heard, held, held_by_another, states
from tests.testapp.models import Video


@pytest.fixture(autouse=True)
def _locks_in_memory(settings):
    settings.TASKLOCK = MEMORY
    reset()


@pytest.fixture
def busy():
    """``busy(name)``: somebody else has that lock until the test ends."""
    with ExitStack() as others:
        yield lambda name, **options: others.enter_context(held_by_another(name, **options))


@task_lock("report:{day}")
def report(day, pages=3, *, draft=False):
    """Write a report."""
    return {"day": day, "pages": pages, "draft": draft, "held": held(f"report:{day}")}


locks_and_rates = pytest.mark.parametrize("decorate", [task_lock("a"), rate_limited("a", "10/s")], ids=["lock", "rate"])


def traced(function):
    """A decorator that knows neither coroutines nor generators."""

    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


class TestTaskLock:
    def test_the_body_runs_under_the_lock_and_its_result_comes_back(self):
        assert report("monday", draft=True) == {"day": "monday", "pages": 3, "draft": True, "held": True}
        assert not held("report:monday")

    def test_defaults_count(self, busy):
        @task_lock("convert:{video}:{quality}")
        def convert(video, quality="hd"):
            return "ran"

        busy("convert:1:hd")
        assert convert(1)["status"] == "skipped"
        assert convert(1, "hd")["status"] == "skipped"
        assert convert(1, "sd") == "ran"
        assert convert.lock.name(video=1) == "convert:1:hd"
        assert convert.lock.is_locked(video=1)
        assert not convert.lock.is_locked(video=1, quality="sd")

    def test_methods(self, busy):
        class Shop:
            def __init__(self, number):
                self.number = number

            @task_lock("shop:{self.number}:{item}")
            def order(self, item):
                return self.number, item

            @staticmethod
            @task_lock("open:{hour}")
            def open(hour):
                return hour

            @classmethod
            @task_lock("brand:{cls.__name__}")
            def brand(cls):
                return cls

        busy("shop:1:tea")
        assert Shop(1).order("tea")["status"] == "skipped"
        assert Shop(2).order("tea") == (2, "tea")
        assert (Shop.open(9), Shop.brand()) == (9, Shop)
        assert Shop.order.lock.name(self=Shop(1), item="tea") == "shop:1:tea"

    def test_objects_that_are_called_like_functions(self, busy):
        class Sender:
            def __call__(self, address):
                return f"to {address}"

        send = task_lock("send:{address}")(Sender())
        half = task_lock("half:{b}")(functools.partial(lambda a, b: (a, b), 1))
        assert send("x") == "to x"
        assert half(2) == half(b=2) == (1, 2)
        busy("send:x")
        assert send("x")["status"] == "skipped"

    def test_the_name_may_be_made_by_a_callable(self, busy):
        @task_lock(lambda video, **rest: f"video:{video.pk}")
        def work(video, speed=1):
            return speed

        video = Video(pk=42)
        assert work(video, speed=3) == 3
        busy("video:42")
        assert work(video)["name"] == "video:42"
        assert work.lock.is_locked(video=video)

    def test_it_looks_like_the_function_it_is_put_around(self):
        assert (report.__name__, report.__doc__, report.__module__) == ("report", "Write a report.", __name__)
        assert str(inspect.signature(report)) == "(day, pages=3, *, draft=False)"
        assert inspect.getfullargspec(report).args == ["day", "pages"]

    def test_settings_are_read_at_the_call(self, settings, busy):
        busy("report:monday")
        assert report("monday")["status"] == "skipped"
        settings.TASKLOCK = MEMORY | {"ON_CONFLICT": "raise", "TIMEOUT": 50, "LEASE": 30}
        with heard(lock_conflict) as told, pytest.raises(TaskLockAcquireError):
            report("monday")
        assert [one["action"] for one in told] == ["raise"]

        @task_lock("a")
        def work():
            return current_lock().time_left

        assert work() == pytest.approx(50, abs=5)


class TestConflicts:
    def test_a_skip_is_a_dict_that_says_who_and_how_long(self, busy, caplog):
        caplog.set_level(logging.INFO, "django_tasklock")
        busy("report:monday", timeout=100)
        with heard(lock_conflict) as told:
            skipped = report("monday")
        assert set(skipped) == {"status", "reason", "name", "holder", "held_for", "time_left"}
        assert skipped["status"] == "skipped"
        assert skipped["reason"] == "already_processing"
        assert skipped["name"] == "report:monday"
        assert skipped["holder"] == TaskLock("report:monday").info().holder
        assert 0 <= skipped["held_for"] < 60
        assert 40 < skipped["time_left"] <= 100
        assert json.loads(json.dumps(skipped)) == skipped

        (record,) = caplog.records
        assert (record.name, record.levelname) == ("django_tasklock", "INFO")
        for part in ("skipped", "'report:monday'", skipped["holder"], f"{skipped['held_for']:.1f} s", "left"):
            assert part in record.message
        assert [(one["sender"], one["action"], one["error"].holder) for one in told] == [
            ("report:monday", "skip", skipped["holder"])
        ]

    def test_wait_no_longer_than_allowed(self, busy):
        @task_lock("a", on_conflict="wait", blocking_timeout=0.05)
        def work():
            pytest.fail("the body ran")

        busy("a")
        with heard(lock_conflict) as told, pytest.raises(TaskLockAcquireError, match="'a' is held by"):
            work()
        assert [one["action"] for one in told] == ["raise"]

    def test_a_nested_call_of_the_same_name_is_an_error_and_the_outer_one_keeps_the_lock(self):
        """Gold standard 8.22: it conflicts with itself, not silently; and 8.2: it releases nothing it never took."""
        seen = []

        @task_lock("a", on_conflict="skip")
        def inner():
            pytest.fail("the inner body ran")

        @task_lock("a")
        def outer():
            with pytest.raises(TaskLockError, match="already held by this thread.*reentrant=True"):
                inner()
            seen.append((current_lock().name, current_lock().held, held("a"), elsewhere(outer)))
            return "ran"

        with heard(lock_released) as told:
            assert outer() == "ran"
        assert seen[0][:3] == ("a", True, True)
        assert seen[0][3]["reason"] == "already_processing"
        assert [one["outcome"] for one in told] == [Released.RELEASED]
        assert not held("a")

    def test_unless_it_is_reentrant(self):
        depths = []

        @task_lock("a", reentrant=True)
        def work(depth):
            depths.append((depth, held("a")))
            if depth:
                work(depth - 1)
            assert held("a")

        work(3)
        assert depths == [(3, True), (2, True), (1, True), (0, True)]
        assert not held("a")


@pytest.mark.django_db(transaction=True)
def test_where_the_store_is_down_the_guard_still_judges(settings):
    settings.TASKLOCK = {"LOCATION": "redis://127.0.0.1:1/0"}
    video = Video.objects.create()

    @model_lock(Video, "video:{pk}", guard=ONCE)
    def work(pk):
        assert elsewhere(lambda: work(pk))["reason"] == "invalid_state"
        claim = current_claim()
        claim.update(progress=40)
        return claim.epoch

    assert work(video.pk) == 1
    assert states(video) == ("ready", 40, 1)
    heartbeat.reconciler.clear()  # it would go on trying to release them


class TestWhatIsRefused:
    """Where it is written, not when it is called; and nothing is stored."""

    @pytest.mark.parametrize(
        ("decorate", "match"),
        [
            (lambda: task_lock("v:{vid}")(lambda video_id: None), "names 'vid', which is no argument.*video_id"),
            (
                lambda: task_lock("v:{ids[-1]}")(lambda ids: None),
                r"'v:\{ids\[-1\]\}' of .*<lambda>' counts from the end",
            ),
            (lambda: task_lock("a", timeout=0)(lambda: None), "timeout must be a positive number"),
            (lambda: task_lock("a", timeout=5, lease=6)(lambda: None), "longer than its timeout"),
            (
                lambda: model_lock(Video, "v:{pk}", guard=GUARD)(lambda video_id: None),
                "names 'pk', which is no argument",
            ),
            (
                lambda: model_lock(Video, guard=GUARD, pk="pk")(lambda video_id: None),
                "pk='pk' is no argument of.*video_id",
            ),
            (lambda: model_lock(Video, guard=GUARD)(lambda *args, **kwargs: None), "no argument of.*known: none"),
        ],
    )
    def test_what_cannot_work(self, decorate, match):
        with pytest.raises(TaskLockError, match=match):
            decorate()

    @pytest.mark.parametrize(
        ("options", "match"),
        [
            ({"on_conflict": "later"}, "on_conflict must be one of 'skip', .*, not 'later'"),
            (
                {"on_conflict": "skip", "blocking_timeout": 5},
                "blocking_timeout goes with on_conflict='wait', not 'skip'",
            ),
            ({"on_conflict": "wait", "blocking_timeout": -1}, "blocking_timeout must be a positive"),
            ({"on_unavailable": "die"}, "on_unavailable must be 'run'"),
            ({"release_connections": 1}, "release_connections must be True"),
            ({"queue_limit": 3}, "queue_limit goes with on_conflict='queue', not None"),
            ({"on_conflict": "queue", "queue_limit": 0}, "queue_limit must be a number of messages"),
        ],
    )
    def test_it_is_said_of_which_decorator(self, options, match):
        with pytest.raises(TaskLockError, match=r"^@task_lock\('v:\{pk\}'\): " + match):
            task_lock("v:{pk}", **options)
        with pytest.raises(TaskLockError, match=r"^@model_lock\('v:\{pk\}'\): " + match):
            model_lock(Video, "v:{pk}", guard=GUARD, **options)
        if "queue_limit" not in options:
            with pytest.raises(TaskLockError, match=r"^@concurrency_limited\('v:\{pk\}'\): " + match):
                concurrency_limited("v:{pk}", 3, **options)

    def test_it_is_said_of_words_that_only_locks_of_one_name_have(self):
        with pytest.raises(TaskLockError, match=r"^@concurrency_limited\('a'\): on_conflict='queue' is for locks"):
            concurrency_limited("a", 3, on_conflict="queue")
        with pytest.raises(TaskLockError, match=r"^@task_lock\('a \+ b'\): on_conflict='queue' keeps messages"):
            task_lock(["a", "b"], on_conflict="queue")

    def test_a_number_is_that_of_an_argument_after_self(self):
        class Report:
            @task_lock("report:{0}")
            def write(self, day):
                return current_lock().name

            @classmethod
            @task_lock("reports:{0}")
            def write_all(cls, day):
                return current_lock().name

        assert (Report().write("monday"), Report.write_all("monday")) == ("report:monday", "reports:monday")

    def test_without_parentheses(self):
        """The function would be taken for one that makes names, and vanish."""
        said = r"work: @task_lock needs the name of the lock; write @task_lock\('report:\{day\}'\)"
        refused = pytest.raises(TaskLockError, match=said)
        with refused:

            @task_lock
            def work(day): ...

        with refused:

            @functools.cache
            @task_lock
            @functools.cache
            @traced
            def work(day):
                return day

        with refused:

            class Report:
                @task_lock
                async def work(self, day): ...

    def test_a_callable_that_makes_names_is_none_without_parentheses(self):
        def name(day):
            return f"report:{day}"

        for make in (name, functools.partial(name), lambda day: f"report:{day}"):

            @task_lock(make)
            def work(day):
                return current_lock().name

            assert work("monday") == task_lock(make)(lambda day: current_lock().name)("monday") == "report:monday"

    def test_what_would_run_after_its_lock(self):
        def generator(n):
            yield n

        async def async_generator(n):
            yield n

        class Rows:
            def __call__(self, n):
                yield n

        for function in (generator, async_generator, functools.partial(generator, 1), Rows()):
            with pytest.raises(TaskLockError, match="is a generator: it would run after its lock was released"):
                task_lock("a")(function)
        for kind in (contextlib.contextmanager, contextlib.asynccontextmanager):
            with pytest.raises(TaskLockError, match="generator is a context manager: it would run after its lock"):
                task_lock("a")(kind(generator))

    @locks_and_rates
    @pytest.mark.parametrize("kind", [traced, lambda f: traced(contextlib.contextmanager(f))])
    def test_a_generator_behind_a_plain_wrapper(self, decorate, kind):
        def rows(pk):
            yield pytest.fail("it ran")

        async def async_rows(pk):
            yield pytest.fail("it ran")

        with pytest.raises(TaskLockError, match="rows is a generator behind another decorator"):
            decorate(kind(rows))(1)
        if kind is traced:
            with pytest.raises(TaskLockError, match="async_rows is a generator behind another decorator"):
                decorate(kind(async_rows))(1)
        assert not held("a")

    def test_a_generator_that_is_a_result_is_none(self):
        @task_lock("a")
        @traced
        def work():
            return (number for number in range(3))

        assert list(work()) == [0, 1, 2]

    @locks_and_rates
    def test_the_generator_of_another_function(self, decorate):
        """Also that of an inner one, whose body has not begun."""

        def work(pk):
            def rows():
                yield pytest.fail("it ran")

            return rows()

        with pytest.raises(TaskLockError, match="work returned the generator rows: its body would run after its lock"):
            decorate(work)(1)
        assert not held("a")

    @pytest.mark.parametrize("limited", [task_lock("a"), concurrency_limited("a", 2)], ids=["lock", "limiter"])
    def test_a_response_that_streams(self, limited):
        """It is sent when the function has returned, so as many would stream at once as there are requests."""
        closed, file = [], io.BytesIO(b"a file")

        def rows():
            yield pytest.fail("it ran")

        async def async_rows():
            yield pytest.fail("it ran")

        for response in (StreamingHttpResponse(rows()), StreamingHttpResponse(async_rows()), FileResponse(file)):
            response._resource_closers.append(lambda: closed.append(True))

            async def view(response=response):
                return response

            for function in (limited(lambda response=response: response), async_to_sync(limited(view))):
                with pytest.raises(TaskLockError, match="Response, which is sent after its lock was released: lock in"):
                    function()
        assert len(closed) == 3
        assert file.closed
        assert not held("a")

    def test_the_form_that_holds_for_a_response_that_streams(self):
        def lines():
            with ConcurrencyLimiter("a", 2, blocking=False):
                yield b"begun"
                yield b"over"

        def request():
            stream = iter(StreamingHttpResponse(lines()))
            try:
                return next(stream)
            except TaskLockAcquireError:
                return b"refused"
            finally:
                together.wait(60)

        together = threading.Barrier(6)
        with ThreadPoolExecutor(6) as pool:  # a thread for each
            answers = [one.result() for one in [pool.submit(request) for _ in range(6)]]
        assert sorted(answers) == [b"begun"] * 2 + [b"refused"] * 4

    def test_a_response_that_does_not(self):
        """What a template shows is what the body has found."""
        for response in (HttpResponse("a"), SimpleTemplateResponse("a.html")):
            assert task_lock("a")(lambda response=response: response)() is response

    def test_what_would_call_a_function_later(self):
        for result in (map(str, [1]), filter(str, [1])):
            with pytest.raises(TaskLockError, match="would call its function after its lock: return a list of it"):
                task_lock("a")(lambda result=result: result)()

    @locks_and_rates
    def test_a_coroutine_behind_a_plain_wrapper(self, decorate):
        """Called, it would run when it is awaited: by then the lock is another's."""

        @decorate
        @traced
        async def work(pk):
            pytest.fail("it ran")

        with pytest.raises(TaskLockError, match="work returned a coroutine.*directly above its 'async def'"):
            work(1)
        assert not held("a")

    @pytest.mark.parametrize("started", [False, True])
    def test_a_task_of_an_event_loop(self, started):
        """It would run, or go on, when the loop has the word again: by then the lock is another's. It is cancelled."""
        ran = []

        async def body():
            ran.append("begun")
            await asyncio.sleep(0)
            ran.append("unlocked")

        async def call():
            task = asyncio.create_task(body())
            if started:
                await asyncio.sleep(0)
            work = task_lock("a")(lambda: task)
            with pytest.raises(TaskLockError, match="returned a Task of asyncio that is not done, which is cancelled"):
                work()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(call())
        assert ran == ["begun"] * started
        assert not held("a")

    @pytest.mark.parametrize("started", [False, True])
    def test_a_future_of_a_pool(self, started):
        """Its body runs in another thread, or process: by then the lock is another's. It is cancelled if it can be."""
        entered, gate, ran = threading.Event(), threading.Event(), []

        def body():
            entered.set()
            assert gate.wait(60)
            ran.append("unlocked")

        def call():
            future = pool.submit(body)
            assert not started or entered.wait(60)
            return future

        what = "and goes on: its body runs after its lock" if started else "which is cancelled: its body would run"
        with ThreadPoolExecutor(1) as pool, ExitStack() as stack:
            stack.callback(gate.set)
            if not started:
                pool.submit(gate.wait, 60)  # the only thread is busy
            with pytest.raises(TaskLockError, match=f"call returned a Future of a pool that is not done, {what}"):
                task_lock("a")(call)()
            assert not held("a")
        assert ran == ["unlocked"] * started

    def test_a_future_of_a_pool_that_is_done_is_a_result(self):
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(int)
            future.result()
            assert task_lock("a")(lambda: future)() is future

    def test_a_decorator_in_the_wrong_place(self):
        for kind in (classmethod, staticmethod):
            with pytest.raises(TaskLockError, match=f"put @{kind.__name__} above the lock decorator"):
                task_lock("a")(kind(lambda: None))
        with pytest.raises(TaskLockError, match="is not callable"):
            task_lock("a")(42)


class TestLock:
    def test_takes_arguments_as_the_function_does(self, busy):
        assert not report.lock.is_locked("monday")
        assert report.lock.info("monday") is None
        busy("report:monday")
        assert report.lock.is_locked("monday")
        assert report.lock.is_locked("monday", pages=3)
        assert not report.lock.is_locked("tuesday")
        assert report.lock.info("monday").name == report.lock.name("monday") == "report:monday"
        assert report.lock.info(day="monday").name == report.lock.name(day="monday") == "report:monday"
        with pytest.raises(TypeError, match="too many positional"):
            report.lock.is_locked(*"abcdefgh")
        with pytest.raises(TypeError, match="multiple values"):
            report.lock.is_locked("monday", day="monday")


class TestCoroutines:
    def test_or_one_after_the_other(self):
        inside = []

        @task_lock("a", on_conflict="wait")
        async def work(n):
            assert not inside
            inside.append(n)
            await asyncio.sleep(0)
            inside.remove(n)
            return n

        async def many():
            return await asyncio.gather(*(work(n) for n in range(5)))

        assert async_to_sync(many)() == [0, 1, 2, 3, 4]

    def test_nested(self):
        @task_lock("a", on_conflict="raise")
        async def inner():
            pytest.fail("the inner body ran")

        @task_lock("a")
        async def outer():
            with pytest.raises(TaskLockError, match="already held"):
                await inner()
            with pytest.raises(TaskLockAcquireError):
                await asyncio.create_task(inner())  # a task of its own is another holder
            return held("a")

        assert async_to_sync(outer)() is True
        assert not held("a")

    def test_an_object_whose_call_is_a_coroutine_function(self):
        class Sender:
            async def __call__(self, n):
                await asyncio.sleep(0)
                return held(f"a:{n}")

        work = task_lock("a:{n}")(Sender())
        assert inspect.iscoroutinefunction(work)
        assert async_to_sync(work)(1) is True
        assert not held("a:1")
