"""What an overloaded service answers never raises: it is a pause, as it asks or with a back-off."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from multidict import CIMultiDict, CIMultiDictProxy
from requests.structures import CaseInsensitiveDict

from django_tasklock import RateLimiter, TaskLockError
from django_tasklock.rates import answers
from tests.support.public import in_store

pytest_plugins = ["tests.support.redis_fixtures"]
SOON = datetime.now(UTC) + timedelta(hours=1)


@pytest.fixture(autouse=True)
def store(settings) -> Iterator[str]:
    yield from in_store("memory", settings)


@pytest.fixture
def clock(monkeypatch) -> SimpleNamespace:
    """The clock by which back-offs follow each other."""
    now = SimpleNamespace(time=1000.0)
    monkeypatch.setattr(answers, "monotonic", lambda: now.time)
    return now


def answer(**headers: Any) -> SimpleNamespace:
    return SimpleNamespace(status_code=429, headers={key.replace("_", "-"): value for key, value in headers.items()})


READ = {
    "seconds": (answer(Retry_After="30"), 30),
    "a number": (answer(Retry_After=30), 30),
    "bytes": (SimpleNamespace(headers={b"Retry-After": b" 30 "}), 30),
    "milliseconds": (answer(retry_after_ms="1500", Retry_After="2"), 1.5),
    "Go": (answer(Retry_After="6m0s"), 360),
    "Go, milliseconds": (answer(Retry_After="250ms"), 0.25),
    "words": (answer(Retry_After="2 minutes"), 120),
    "a date": (answer(Retry_After=format_datetime(SOON, usegmt=True)), SOON),
    "ISO": (answer(Retry_After=SOON.isoformat()), SOON),
    "ISO without a zone": (answer(Retry_After=SOON.replace(tzinfo=None).isoformat()), SOON),
    "a timestamp": (answer(X_RateLimit_Reset=str(int(SOON.timestamp()))), SOON),
    "a timestamp in ms": (answer(X_RateLimit_Reset=str(int(SOON.timestamp() * 1000))), SOON),
    "X, Okta": (answer(X_Rate_Limit_Reset=str(int(SOON.timestamp()))), SOON),
    "a draft": (answer(RateLimit_Reset="12"), 12),
    "Discord": (answer(X_RateLimit_Reset_After="1.5", X_RateLimit_Reset=str(int(SOON.timestamp()))), 1.5),
    "one odd, another good": (answer(Retry_After="", RateLimit_Reset="12"), 12),
}


@pytest.mark.parametrize("case", READ)
def test_what_a_service_asks_for_is_what_it_gets(case: str, warnings_logged: Any) -> None:
    response, expected = READ[case]
    limiter = RateLimiter("api", "5/s", max_wait=7200)
    pause = limiter.penalize_from(response)
    if isinstance(expected, datetime):
        left = (expected - datetime.now(UTC)).total_seconds()
        assert left - 1.5 < pause < left + 60
    else:
        assert pause == pytest.approx(expected, abs=0.01)
    assert not any("does not say" in line for line in warnings_logged())
    assert not limiter.try_acquire()


ODD = [
    {},
    {"Retry-After": ""},
    {"Retry-After": "soon"},
    {"Retry-After": "-1"},
    {"Retry-After": "nan"},
    {"Retry-After": "1e300"},
    {"Retry-After": "30, 60"},
    {"Retry-After": "2026-13-45T00:00:00Z"},
    {"Retry-After": "Wed, 99 Nov 2026 08:49:37 GMT"},
    {"X-RateLimit-Reset": "99999999999999999999"},
]


@pytest.mark.parametrize("headers", ODD, ids=str)
def test_a_missing_or_odd_value_is_a_pause_and_a_warning_that_names_it(
    headers: dict[str, str], warnings_logged: Any
) -> None:
    limiter = RateLimiter("api", "5/s")
    assert limiter.penalize_from(SimpleNamespace(headers=headers)) == pytest.approx(1, abs=0.01)
    [line] = [line for line in warnings_logged() if "does not say for how long" in line]
    assert all(repr(value) in line for value in headers.values())
    assert headers or "no Retry-After" in line


def test_the_pause_doubles_up_to_a_minute_and_begins_anew_after_one(clock: SimpleNamespace) -> None:
    limiter, pauses = RateLimiter("api", "5/s"), []
    for _ in range(8):
        pauses.append(limiter.penalize_from(answer()))
        limiter.penalize_from(answer())  # of a call that was under way as well
        limiter.reset()
        clock.time += pauses[-1] + 0.001
    assert pauses == pytest.approx([1, 2, 4, 8, 16, 32, 60, 60], abs=0.01)
    assert RateLimiter("other", "5/s").penalize_from(answer()) == pytest.approx(1, abs=0.01)
    clock.time += 61
    assert limiter.penalize_from(answer()) == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("asked", ["600", SOON.isoformat()], ids=["seconds", "time"])
def test_a_pause_that_max_wait_shortens_is_named(asked: str, warnings_logged: Any) -> None:
    assert RateLimiter("api", "5/s", max_wait=10).penalize_from(answer(Retry_After=asked)) == pytest.approx(10, abs=0.5)
    [line] = warnings_logged()
    assert ("600 s" if asked == "600" else "a pause until 20") in line
    assert "max_wait allows 10 s" in line


def test_the_pause_is_of_all_tenants() -> None:
    limiter = RateLimiter("api", "5/s", tenants="2/s")
    limiter.tenant("acme").penalize_from(answer(Retry_After="30"))
    assert not limiter.tenant("other").try_acquire()


def test_what_is_no_response_is_refused() -> None:
    for wrong in (30, "30", None, {"Retry-After": "30"}):
        with pytest.raises(TaskLockError, match="response with .headers"):
            RateLimiter("api", "5/s").penalize_from(wrong)


HEADERS = {"Retry-After": "30", "X-Other": "1"}


@pytest.mark.parametrize(
    "headers",
    [httpx.Headers(HEADERS), CaseInsensitiveDict(HEADERS), CIMultiDictProxy(CIMultiDict(HEADERS))],
    ids=["httpx", "requests", "aiohttp"],
)
def test_the_headers_of_each_client_are_read(headers: Any) -> None:
    pause = RateLimiter("api", "5/s").penalize_from(SimpleNamespace(status_code=429, headers=headers))
    assert pause == pytest.approx(30, abs=0.01)
