"""``RateLimiter``: callers wait for their turn at a limit that all share. What stores do is in ``tests/contract``."""

from __future__ import annotations

import asyncio
import functools
import logging
import pickle
import time
from collections.abc import Iterator
from datetime import timedelta
from types import SimpleNamespace

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import connection

from django_tasklock import RateLimiter, RateLimitExceeded, TaskLockError, current_reservation, rate_limited, signals
from django_tasklock.backends import get_backend
from django_tasklock.db.clock import Now
from django_tasklock.rates import reservation as rates_reservation
from django_tasklock.types import monotonic
from tests.support.guards import heard
from tests.support.public import in_store
from tests.support.rate_callers import at_once, most_within
from tests.support.stores import eventually, stores
from tests.support.twins import TWINS, call


@pytest.fixture(params=stores("memory"), autouse=True)
def store(request, settings) -> Iterator[str]:
    if request.param == "database":
        from django_tasklock.models import RateRow

        RateRow.objects.all().delete()
    yield from in_store(request.param, settings)


on_each = pytest.mark.parametrize("store", stores("redis", "database", "memory"), indirect=True)


class TestWaiting:
    @on_each
    @TWINS
    def test_so_many_at_once_and_then_at_the_pace(self, way):
        limiter, calls = RateLimiter("api", "5/0.2s", margin=0.1), []
        with heard(signals.rate_granted) as granted:
            for _ in range(6):
                assert call(way, limiter, "acquire")
                calls.append((monotonic(), 1))
        assert most_within(calls, 0.2) <= 5
        assert [one["how"] for one in granted[:5]] == ["at_once"] * 5
        assert 0.2 < calls[5][0] - calls[0][0] < 20

    def test_a_deadline_that_cannot_be_met_is_refused_at_once(self):
        limiter = RateLimiter("api", "1/200s")
        limiter.acquire()
        began = time.monotonic()
        with pytest.raises(
            RateLimitExceeded, match=r"api.*1/200s.*next reservation is in (1\d\d|200)\.\d+ s, it may take"
        ) as caught:
            limiter.acquire(5)
        assert time.monotonic() - began < 30
        assert 100 < caught.value.retry_after <= 201
        assert caught.value.name == "api"
        assert limiter.usage().windows[0].ahead == 0
        assert limiter.usage().refused == 1

    def test_a_reservation_knows_its_time_goes_back_once_and_is_used_once(self):
        limiter = RateLimiter("api", "1/200s", max_wait=300)
        limiter.acquire()
        reservation = limiter.reserve()
        assert 100 < reservation.wait <= 200.5
        assert timedelta(seconds=100) < reservation.time - limiter.usage().time <= timedelta(seconds=200.5)
        with pytest.raises(RateLimitExceeded) as caught:  # beyond the horizon
            limiter.acquire()
        assert 300 < caught.value.retry_after <= 402
        token = reservation.move()
        assert [limiter.give_back(token), limiter.give_back(token)] == [True, False]
        limiter = RateLimiter("another", "1/0.2s")
        limiter.acquire()
        reservation = limiter.reserve()
        reservation.use()
        assert reservation.wait == 0
        assert limiter.usage().time >= reservation.time
        with pytest.raises(TaskLockError, match="was used before"):
            reservation.use()

    @on_each
    def test_what_was_settled_to_nothing_can_be_settled_again(self):
        """A call that seemed to have failed, and is on the bill: it was the only one."""
        limiter = RateLimiter("api", "1000/m", "2000/h")
        reservation = limiter.acquire(cost=500)
        assert reservation.settle(0)
        assert limiter.usage().used == 0
        assert reservation.settle(800)
        assert [window.used for window in limiter.usage().windows] == [800, 800]
        assert not limiter.try_acquire(cost=300)
        assert reservation.settle(100)
        assert limiter.try_acquire(cost=900)

    @on_each
    def test_a_reservation_moves_to_another_process(self):
        """As a Celery message carries it: booked once, resumed on arrival."""
        limiter = RateLimiter("api", "1/0.1s", margin=0.1)
        limiter.acquire()
        reservation = limiter.reserve()
        due = reservation.time
        token = reservation.move()
        assert not reservation.cancel()
        with pytest.raises(TaskLockError, match="was moved before"):
            reservation.use()
        restored = RateLimiter("api", "1/0.1s", margin=0.1).restore(token)
        assert restored.missed or abs((restored.time - due).total_seconds()) < 0.01
        restored.use()
        assert RateLimiter("api", "1/0.1s", margin=0.1).restore("").use()
        for nonsense in ("nonsense", "1:2", "1:2:0", "1:2:-3", "1:2:3+1:2:0"):
            with pytest.raises(TaskLockError, match="no reservation token"):
                limiter.restore(nonsense)


class TestPushback:
    def test_a_pushback_pauses_all_callers_and_keeps_their_order(self):
        limiter, order = RateLimiter("api", "1/0.1s", margin=1), []  # or who is late books again, behind the other
        began = time.monotonic()
        limiter.acquire()

        def wait(number: int, reservation) -> None:
            reservation.use()
            order.append(number)

        reservations = [limiter.reserve() for _ in range(2)]
        threads = at_once(wait, *enumerate(reservations))
        assert 0 < RateLimiter("api", "1/0.1s", margin=1).penalize(0.3) <= 0.3
        late = limiter.reserve()
        for thread in threads:
            thread.join(30)
        assert time.monotonic() - began > 2 * 1.1 + 0.3 - 0.05
        late.use()
        assert order == [0, 1]
        assert limiter.usage().paused == 0

    def test_it_stops_all_and_has_a_cap(self):
        limiter = RateLimiter("api", "5/s", max_wait=10)
        assert limiter.penalize("5") == pytest.approx(5, abs=0.01)
        assert not limiter.try_acquire()
        assert limiter.penalize(timedelta(days=10)) == pytest.approx(10, abs=0.01)

    def test_an_adaptive_limit_falls_for_everybody(self):
        limiter = RateLimiter("api", "10/20s", adaptive=True)
        limiter.penalize(0.01)
        assert limiter.limit.min_share == 100_000, "a tenth"
        assert limiter.usage().share == 0.7
        assert RateLimiter("api", "10/20s").usage().windows[0].limit == 7
        limiter.adjust(0.5)
        assert limiter.usage().windows[0].limit == 5, "an operator sets it"


class TestReset:
    def test_while_others_sleep(self):
        """They book again, and do not come on top of the new bookings."""
        limiter, calls = RateLimiter("api", "2/0.2s", margin=0.1), []
        reservations = [limiter.reserve() for _ in range(4)]

        def wait(reservation) -> None:
            reservation.use()
            calls.append((monotonic(), 1))

        threads = at_once(wait, *((reservation,) for reservation in reservations))
        eventually(lambda: len(calls) >= 2)  # those that were let go at once
        limiter.reset()
        since = monotonic()
        for thread in threads:
            thread.join(30)
        assert most_within([one for one in sorted(calls) if one[0] > since], 0.2) <= 2
        assert len(calls) == 4


class TestTenants:
    @on_each
    def test_have_a_quota_of_their_own_inside_the_shared_one(self):
        limiter = RateLimiter("api", "5/h", tenants="3/h")
        acme, other = limiter.tenant("acme"), limiter.tenant("other")
        assert [bool(acme.try_acquire()) for _ in range(4)] == [True, True, True, False]
        assert [bool(other.try_acquire()) for _ in range(3)] == [True, True, False]
        assert other.usage().used == 2  # what the shared limit refused is not charged to the tenant
        assert limiter.usage().used == 5
        acme.penalize(30)
        assert not limiter.tenant("third").try_acquire()
        assert limiter.tenant("third").usage().used == 0

    def test_an_object_without_a_text_of_its_own_is_none(self):
        """Each would be a tenant by itself, with all of the quota."""
        limiter = RateLimiter("api", "100/h", tenants="1/h")
        for tenant in (object(), [object()], len.__call__):
            with pytest.raises(TaskLockError, match="'api': tenant .* in memory.* primary key"):
                limiter.tenant(tenant)
        assert limiter.tenant(42).name == limiter.tenant("42").name
        with pytest.raises(TaskLockError, match="no quota for tenants"):
            RateLimiter("api", "10/h").tenant("acme")
        with pytest.raises(TaskLockError, match="must not contain"):
            RateLimiter("a:tenant:b", "1/h")  # which is how tenants are told apart from limiters

    def test_a_missing_one_is_one_of_its_own(self):
        """Never everybody: whoever forgets the tenant has a tenant's quota, and takes it from no other."""
        limiter = RateLimiter("api", "100/h", tenants="1/h")
        assert limiter.tenant(None).try_acquire()
        assert not limiter.tenant("").try_acquire()
        assert not limiter.try_acquire()
        assert limiter.tenant("acme").try_acquire()

    def test_what_one_gives_back_is_both_and_what_it_reserves_for_later_is_its_own(self):
        limiter = RateLimiter("api", "2/h", tenants="1/h", max_wait=10_000)
        limiter.tenant("acme").acquire().cancel()
        limiter.tenant("acme").acquire()
        assert limiter.tenant("acme").reserve().wait > 3000
        assert limiter.tenant("other").try_acquire()

    def test_no_window_of_one_has_more_after_a_wait_for_the_shared_limit(self):
        """Two calls whose own slots have passed meanwhile do not go together when that is free."""
        limiter, calls = RateLimiter("api", "2/0.6s", tenants="1/0.4s", margin=0.01), []

        def go() -> None:
            limiter.tenant("acme").acquire()
            calls.append(monotonic())

        for tenant in "bc":
            limiter.tenant(tenant).acquire()
        for thread in at_once(go, (), ()):
            thread.join(20)
        assert abs(calls[1] - calls[0]) >= 0.4 - 0.02


class TestTogether:
    """Several limits that count one call, each by a cost of its own."""

    def both(self, requests: str = "2/h", tokens: str = "10/h", **options) -> tuple[RateLimiter, ...]:
        parts = RateLimiter("requests", requests, **options), RateLimiter("tokens", tokens, **options)
        return parts[0].together_with(parts[1]), *parts

    def used(self, *limiters: RateLimiter) -> list[int]:
        return [limiter.usage().used for limiter in limiters]

    @on_each
    @TWINS
    def test_all_or_nothing_and_settled_by_name(self, way):
        both, *parts = self.both()
        reservation = call(way, both, "acquire", cost={"tokens": 8})
        assert self.used(*parts) == [1, 8]
        assert call(way, both, "try_acquire", cost={"tokens": 8}) is None
        assert self.used(*parts) == [1, 8]
        assert reservation.settle({"tokens": 3})
        assert self.used(*parts) == [1, 3]
        assert call(way, both, "try_acquire", cost={"tokens": 7})
        assert call(way, both, "try_acquire") is None
        assert self.used(*parts) == [2, 10]
        with pytest.raises(RateLimitExceeded, match="requests"):
            both.acquire(1)

    def test_what_waits_for_one_holds_nothing_of_the_others_and_moves_with_all_costs(self):
        both, requests, tokens = self.both("9/h", "9/h")
        tokens.acquire(cost=9)
        reservation = both.reserve(cost={"requests": 2, "tokens": 4})
        assert not reservation.use_within(1)
        assert reservation.wait > 3000
        assert self.used(requests, tokens) == [0, 9]
        token = reservation.move()
        tokens.reset()
        moved = both.restore(token).use()
        assert self.used(requests, tokens) == [2, 4]
        assert moved.cancel()
        assert self.used(requests, tokens) == [0, 0]

    def test_of_a_function_that_settles_its_call(self):
        both, *parts = self.both()

        @rate_limited(both, cost=lambda prompt: {"tokens": len(prompt)})
        def ask(prompt):
            current_reservation().settle({"tokens": 1})

        @rate_limited(both, cost={"tokens": 5})
        async def aask():
            current_reservation().settle({"tokens": 2})

        ask("four")
        async_to_sync(aask)()
        assert self.used(*parts) == [2, 3]
        assert current_reservation() is None

    def test_with_a_quota_for_each_tenant(self):
        requests = RateLimiter("requests", "9/h", tenants="2/h")
        tokens = RateLimiter("tokens", "9/h", tenants="5/h")
        both = requests.together_with(tokens)
        assert both.tenant("acme").try_acquire(cost={"tokens": 4})
        assert both.tenant("acme").try_acquire(cost={"tokens": 1})
        assert both.tenant("acme").try_acquire() is None
        assert self.used(requests, requests.tenant("acme"), tokens, tokens.tenant("acme")) == [2, 2, 5, 5]
        assert both.try_acquire(cost={"tokens": 4})
        assert self.used(tokens.tenant(None)) == [4]

    def test_what_cannot_work(self):
        both, requests, _ = self.both()
        for wrong, why in (
            (lambda: both.acquire(cost={"token": 1}), "names 'token'; the limits of .* are 'requests', 'tokens'"),
            (lambda: both.acquire(cost={"tokens": 11}), "cost of 11 does not fit into the limit 10/h of 'tokens'"),
            (lambda: both.acquire(cost={"tokens": 0}), "cost must be"),
            (lambda: both.acquire().settle({"x": 1}), "names 'x'"),
            (lambda: both.together_with(requests), "not different"),
            (lambda: rate_limited(both, "10/s"), "already"),
        ):
            with pytest.raises(TaskLockError, match=why):
                wrong()


def test_context_managers():
    """A limiter waits; a reservation waits, and may be cancelled inside: the call was not made."""
    limiter = RateLimiter("api", "9/h")

    async def work() -> None:
        async with limiter as reservation:
            assert reservation.state == "used"
        async with await sync_to_async(limiter.reserve)() as reservation:
            assert reservation.state == "used"

    with limiter as reservation:
        assert reservation.state == "used"
    with limiter.reserve() as reservation:
        reservation.cancel()
    assert limiter.usage().used == 1
    async_to_sync(work)()
    assert limiter.usage().used == 3


@on_each
def test_coroutines_ask_and_change_its_state(store):
    async def work():
        limiter = RateLimiter("api", "9/h")
        await limiter.aacquire()
        assert (await limiter.ausage()).used == 1
        assert await limiter.apenalize(5) == pytest.approx(5, abs=1)
        assert await limiter.apenalize_from(SimpleNamespace(headers={"Retry-After": "7"})) == pytest.approx(7, abs=1)
        await limiter.aadjust(0.5)
        assert (await limiter.ausage()).share == 0.5
        await limiter.areset()
        usage = await limiter.ausage()
        assert (usage.used, usage.share) == (0, 1)

    async_to_sync(work)()


def test_too_long_a_wait_is_a_timeout():
    limiter = RateLimiter("api", "1/h")
    limiter.acquire()
    with pytest.raises(TimeoutError) as caught:
        limiter.acquire(1)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), str(again), again.name) == (RateLimitExceeded, str(caught.value), "api")
    assert again.retry_after == caught.value.retry_after


class TestCancelling:
    @on_each
    @pytest.mark.slow
    def test_a_thousand_coroutines_at_random_moments(self, store):
        """Before, in and after the question, and asleep: every reservation comes back."""
        number = {"redis": 1000, "memory": 1000, "database": 60}[store]
        limiter = RateLimiter("api", "990/h", "10/20s")

        async def play() -> int:
            import random

            used = 0
            for _ in range(number // 20):
                tasks = [asyncio.ensure_future(limiter.aacquire()) for _ in range(20)]
                await asyncio.sleep(random.uniform(0, 0.004 if store != "database" else 0.05))
                for task in tasks:
                    task.cancel()
                ended = await asyncio.gather(*tasks, return_exceptions=True)
                used += sum(not isinstance(end, BaseException) for end in ended)
                await asyncio.sleep(0)
            left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            await asyncio.gather(*left, return_exceptions=True)
            return used

        used = asyncio.run(play())

        def all_came_back() -> bool:  # a thread that was asking then gives its own back when it has the answer
            usage = limiter.usage()
            long, short = usage.windows
            return short.used == used and long.ahead == short.ahead == usage.free

        eventually(all_came_back)
        assert limiter.usage().next < 21

    def test_a_sleeping_thread_that_is_interrupted(self, monkeypatch):
        limiter = RateLimiter("api", "1/20s")
        limiter.acquire()

        def interrupted(seconds: float) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr("django_tasklock.context.time.sleep", interrupted)
        with pytest.raises(KeyboardInterrupt):
            limiter.acquire()
        assert limiter.usage().windows[0].ahead == 0


@on_each
def test_calls_of_one_millisecond_are_at_once(store, monkeypatch):
    """Some databases count milliseconds, and the slots of one are microseconds apart."""
    if store == "database":
        monkeypatch.setattr(Now, f"as_{connection.vendor}", lambda *details, **more: ("1800000000000", ()))
    with heard(signals.rate_granted) as granted:
        for _ in range(40):
            RateLimiter("api", "1000/h").acquire()
    assert {(one["how"], one["wait"]) for one in granted} == {("at_once", 0.0)}


def hides(function):
    """A decorator that copies no attribute, and says what it wraps."""

    def wrapper():
        return function()

    wrapper.__wrapped__ = function
    return wrapper


class TestDecorator:
    def test_functions_and_coroutines(self):
        @rate_limited("api", "2/h", blocking_timeout=0.1)
        def fetch(page: int) -> int:
            """Fetch it."""
            return page

        @rate_limited("api", "2/h", blocking_timeout=0.1)
        async def afetch(page: int) -> int:
            return page

        assert fetch(1) == 1
        assert fetch.__doc__ == "Fetch it."
        assert asyncio.run(afetch(2)) == 2
        with pytest.raises(RateLimitExceeded):
            fetch(3)
        with pytest.raises(RateLimitExceeded):
            asyncio.run(afetch(4))

    def test_tenants_and_costs_by_argument(self):
        @rate_limited(
            "api",
            "100/h",
            tenants="5/h",
            tenant="{customer}",
            cost=lambda customer, text: len(text),
            blocking_timeout=0,
        )
        def send(customer: str, text: str) -> str:
            return text

        assert send("acme", "12345") == "12345"
        assert send("other", "1234") == "1234"
        with pytest.raises(RateLimitExceeded):
            send("acme", "1")
        assert send.rate_limit.limiter(("acme", "x")).usage().used == 5
        assert send.rate_limit.cost(("other", "xyz")) == 3

    def test_the_limiter_is_made_once_and_follows_the_settings(self, settings):
        @rate_limited("api")
        def fetch() -> None: ...

        def configure(rate: str) -> None:
            settings.TASKLOCK = {**settings.TASKLOCK, "RATE_LIMITS": {"api": rate}}

        configure("2/h")
        fetch()
        limiter = fetch.rate_limit.limiter()
        assert fetch.rate_limit.limiter() is limiter
        configure("3/h")
        assert fetch.rate_limit.limiter().terms.rates[0].limit == 3

    def test_what_cannot_work_is_said_at_decoration(self):
        with pytest.raises(TaskLockError, match="no rate"):
            rate_limited("api", "often")
        with pytest.raises(TaskLockError, match="no template.*tenant='{user}'"):  # it would be one limit for all
            rate_limited("api:{user}", "1/m")
        for wrong, why in (
            ({"cost": 0}, "cost must be"),
            ({"cost": 11}, "does not fit"),
            ({"blocking_timeout": -1}, "blocking_timeout must not be negative"),
            ({"tenant": "{user}"}, "no quota for tenants"),
        ):
            with pytest.raises(TaskLockError, match=why):
                rate_limited("api", "10/m", **wrong)(lambda user: None)
        with pytest.raises(TaskLockError, match="generator"):

            @rate_limited("api", "1/s")
            def rows():
                yield 1

    @pytest.mark.parametrize(
        "between",
        [lambda function: function, functools.wraps, functools.partial, hides],
        ids=["nothing", "wraps", "partial", "wrapped"],
    )
    @TWINS
    def test_a_second_limit_is_refused(self, way, between):
        """The first one would be counted before the wait for the second."""
        if way == "async":

            @rate_limited("tokens", "10/m")
            async def ask():
                pass

        else:

            @rate_limited("tokens", "10/m")
            def ask():
                pass

        inner = between(ask)
        if between is functools.wraps:
            inner = inner(lambda: ask())
        with pytest.raises(TaskLockError, match="two rate limits, 'requests' and 'tokens'.*together_with"):
            rate_limited("requests", "5/m")(inner)


@on_each
def test_limiters_are_listed_by_their_last_use():
    """To the second: not each call is noted in the index."""

    def is_first(name: str) -> bool:
        RateLimiter(name, "5/s").try_acquire()
        return get_backend().rates.names()[0] == name

    for name in ("one", "two", "one"):
        eventually(lambda name=name: is_first(name))


class TestSignals:
    def test_all_of_them(self):
        limiter = RateLimiter("api", "1/3s")
        with heard(signals.rate_granted) as granted:
            limiter.acquire()
            reservation = limiter.acquire()
        assert [one["how"] for one in granted] == ["at_once", "waited"]
        assert granted[1]["wait"] > 0
        assert granted[1]["sender"] == "api"
        with heard(signals.rate_cancelled) as cancelled:
            reservation.cancel()
        assert [one["returned"] for one in cancelled] == [True]
        limiter = RateLimiter("hourly", "1/h")
        limiter.acquire()
        with heard(signals.rate_refused) as refused, pytest.raises(RateLimitExceeded):
            limiter.acquire(0.01)
        assert refused[0]["retry_after"] > 0.1
        with heard(signals.rate_pushback) as pushback:
            limiter.penalize(0.1)
        assert 0 < pushback[0]["wait"] <= 0.1

    def test_a_reservation_that_was_missed(self):
        limiter = RateLimiter("api", "1/0.2s", margin=0.02)
        while (reservation := limiter.reserve()).slot.late >= 0:  # until one has to wait
            pass
        missed, turn = reservation.slot.booked.slot, reservation.slot.booked.time / 1_000_000
        eventually(lambda: limiter.usage().time.timestamp() > turn + 0.05)  # by the store's clock, as it is told
        with heard(signals.rate_late) as late:
            reservation.use()
        assert late[0]["late"] > 0.05
        assert reservation.slot.booked.slot > missed
        assert limiter.usage().used <= 1  # none, if the machine stalled just now

    def test_a_caller_that_is_always_late_never_goes(self, monkeypatch):
        """Each sleep is longer than the margin allows: it is refused at its deadline, or told to raise the margin."""
        limiter = RateLimiter("api", "1/0.1s", margin=0.01)
        nap = time.sleep

        def oversleep(seconds: float) -> None:
            nap(seconds + 0.05)
            limiter.reserve(), limiter.reserve()  # nobody finds a reservation that is free at once

        monkeypatch.setattr("django_tasklock.context.time.sleep", oversleep)
        limiter.acquire()
        reservation = limiter.reserve(0.5)
        with pytest.raises(RateLimitExceeded, match="the next reservation is in"):
            reservation.use()
        assert reservation.state == "cancelled"
        monkeypatch.setattr(rates_reservation, "MOST_MISSES", 2)
        reservation = limiter.reserve()
        told = pytest.raises(RateLimitExceeded, match=r"3 times.* raise margin=")
        with heard(signals.rate_refused) as refused, told:
            reservation.use()
        assert reservation.state == "cancelled"
        assert len(refused) == 1


def test_a_refused_try_acquire_is_logged_at_debug_only(caplog):
    """``try_acquire`` in a loop would write one each time; who may wait, and cannot, is told as ever."""
    limiter = RateLimiter("api", "1/h")
    assert limiter.try_acquire()
    with caplog.at_level(logging.DEBUG, "django_tasklock"), heard(signals.rate_refused) as refused:
        assert not limiter.try_acquire()
        with pytest.raises(RateLimitExceeded):
            limiter.acquire(0.5)
    assert len(refused) == 2
    told = [record.levelname for record in caplog.records if record.getMessage().startswith("refused")]
    assert told == ["DEBUG", "INFO"]


class TestADeploy:
    def test_that_adds_a_rate(self):
        """What was booked before is not counted by it; no call is delayed by that."""
        for _ in range(3):
            RateLimiter("api", "1000/m").try_acquire()
        both = RateLimiter("api", "1000/m", "2/h")
        assert [bool(both.try_acquire()) for _ in range(3)] == [True, True, False]
        assert RateLimiter("api", "1000/m").try_acquire()

    def test_that_lowers_the_limit_below_a_moved_reservation(self):
        """No window has room for it."""
        token = RateLimiter("api", "100/h").reserve(cost=50).move()
        with pytest.raises(TaskLockError, match="a cost of 50 does not fit into the limit 10/h of 'api'"):
            RateLimiter("api", "10/h").restore(token, 1)
