"""How rates and limits are written, in code and in the settings."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.core.exceptions import ImproperlyConfigured

from django_tasklock import RateLimiter, TaskLockError
from django_tasklock.backends.contract.rates import Pushback
from django_tasklock.conf import get_settings
from django_tasklock.rates.notation import parse_rates, parse_retry_after
from django_tasklock.rates.options import rate_problems

SECOND = 1_000_000


@pytest.mark.parametrize(
    ("given", "limit", "seconds"),
    [
        ("100/m", 100, 60),
        ("10/s", 10, 1),
        ("30/5m", 30, 300),
        ("30 per 5 min", 30, 300),
        ("7/0.5s", 7, 0.5),
        (" 1_000 / H ", 1000, 3600),
        ((100, 60), 100, 60),
        ((100, timedelta(minutes=1)), 100, 60),
    ],
)
def test_one_rate(given, limit, seconds):
    [rate] = parse_rates(given)
    assert (rate.limit, rate.window) == (limit, seconds * SECOND)


@pytest.mark.parametrize("given", ["10/s, 5000/d", [(10, 1), "5000/d"], ("10/s", "5000/d")])
def test_several(given):
    assert [(rate.limit, rate.window) for rate in parse_rates(given)] == [(10, SECOND), (5000, 86400 * SECOND)]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("", "is no rate"),
        ("-1/s", "is no rate"),
        ("1__0/m", "is no rate"),
        pytest.param(f"5/{'9' * 400}s", "is no rate", id="a window of 400 digits"),
        ("0/s", "must be 1 or more"),
        ("10001/s", "above 10,000 in a window: write a shorter window .*, or count greater units"),
        ("1/fortnight", "unknown unit 'fortnight'"),
        ("1/minuts", "did you mean 'minute"),
        ("1/0s", "window"),
        ((True, 60), "must be an int"),
        ((5, -1), "window"),
        ([], "no rate in"),
        (5, "is written '100/m'"),
        (None, "is written '100/m'"),
        ("10/s, 20/s", "two rates for one window"),
    ],
)
def test_what_is_none(given, why):
    with pytest.raises(TaskLockError, match=why):
        parse_rates(given)


def test_the_margin_is_part_of_the_window_or_50_ms():
    assert parse_rates("5/s")[0].margin == 50_000
    assert parse_rates("5/h")[0].margin == 7_200_000
    assert parse_rates("5/s", margin=0.01)[0].margin == 10_000
    with pytest.raises(TaskLockError, match="margin"):
        parse_rates("5/s", margin=0)


class TestPushback:
    @pytest.mark.parametrize("given", [120, 120.0, "120", b"120", timedelta(minutes=2)])
    def test_seconds(self, given):
        assert parse_retry_after(given) == Pushback(120 * SECOND)

    @pytest.mark.parametrize(
        "given",
        ["Wed, 21 Oct 2026 07:28:00 GMT", "Wed, 21 Oct 2026 07:28:00 -0000", datetime(2026, 10, 21, 7, 28, tzinfo=UTC)],
    )
    def test_dates(self, given):
        assert parse_retry_after(given) == Pushback(1_792_567_680 * SECOND, absolute=True)


class TestOptions:
    @pytest.mark.parametrize(
        ("options", "why"),
        [
            ({"algorithm": "window"}, "no option 'algorithm'; known: rates, tenants, margin, max_wait"),
            ({"tenant": "5/s"}, "no option 'tenant'; did you mean 'tenants'"),
            ({"on_unavailable": "local"}, "on_unavailable must be one of 'closed', 'open', not 'local'"),
            ({"adaptive": 1.5}, "adaptive must be"),
            ({"max_wait": 0}, "max_wait must"),
            ({"tenants": "some"}, "'some' is no rate"),
        ],
    )
    def test_what_cannot_work(self, options, why):
        with pytest.raises(TaskLockError, match=why) as caught:
            RateLimiter("api", "5/s", **options)
        assert caught.value.name == "api"


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (lambda limiter: RateLimiter("a\nb", "5/s"), "name"),
        (lambda limiter: RateLimiter("x" * 201, "5/s"), "name"),
        (lambda limiter: limiter.reserve(cost=0), "cost"),
        (lambda limiter: limiter.reserve(cost=True), "cost"),
        (lambda limiter: limiter.reserve(cost=6), "cost of 6 does not fit"),
        (lambda limiter: limiter.reserve_many(-1), "number must be a whole number, 0 or more"),
        (lambda limiter: limiter.acquire(-1), "timeout"),
        (lambda limiter: limiter.acquire("5"), "timeout"),
        (lambda limiter: limiter.adjust(0), "share"),
        (lambda limiter: limiter.penalize("soon"), "retry_after"),
        (lambda limiter: limiter.penalize(float("nan")), "retry_after"),
        (lambda limiter: limiter.penalize(datetime(2026, 1, 1)), "retry_after"),  # noqa: DTZ001
    ],
)
def test_what_cannot_be_asked_of_a_limiter(wrong, why):
    with pytest.raises(TaskLockError, match=why):
        wrong(RateLimiter("api", "5/s"))


class TestSettings:
    def test_by_name(self, settings):
        settings.TASKLOCK = {
            "RATE_LIMITS": {
                "tavily": "100/m",
                "openai": {"rates": ["10/s", "5000/d"], "tenants": "1/s", "on_unavailable": "open"},
            }
        }
        assert rate_problems(settings.TASKLOCK["RATE_LIMITS"]) == []
        assert RateLimiter("tavily").terms.rates == parse_rates("100/m")
        openai = RateLimiter("openai")
        assert openai.terms.rates == parse_rates("10/s, 5000/d")
        assert openai.limit.on_unavailable == "open"
        assert RateLimiter("openai", max_wait=5).limit.max_wait == 5 * SECOND
        assert RateLimiter("openai", "1/s").limit.on_unavailable == "closed"  # rates in code: nothing of the settings

    def test_an_unknown_name(self, settings):
        settings.TASKLOCK = {"RATE_LIMITS": {"tavily": "100/m"}}
        with pytest.raises(TaskLockError, match="did you mean 'tavily'"):
            RateLimiter("tavly")
        with pytest.raises(TaskLockError, match="or configure it"):
            RateLimiter("xyz")
        settings.TASKLOCK = {"RATE_LIMITS": {"tavily": "often", "mail": "5/s"}}
        with pytest.raises(TaskLockError, match="rate limit 'tavily': 'often' is no rate"):
            RateLimiter("tavily")
        assert RateLimiter("mail").name == "mail", "an invalid limit fails for its own name only"

    @pytest.mark.parametrize(
        ("given", "what"),
        [
            ({"tavily": "often"}, "'often' is no rate"),
            ({"tavily": {"rate": "5/s"}}, "no option 'rate'; did you mean 'rates'"),
            ({"tavily": {"rates": "5/s", "burst": 3}}, "no option 'burst'; known: rates, tenants, margin"),
            ({"tavily": {"tenants": "5/s"}}, "needs a rate"),
            ({5: "5/s"}, "must be str"),
        ],
    )
    def test_each_finding_says_what_is_wrong(self, given, what):
        [(found, hint)] = rate_problems(given)
        assert what in found
        assert "'100/m'" in hint

    def test_what_is_no_dict_stops_everything(self, settings):
        settings.TASKLOCK = {"RATE_LIMITS": "100/m"}
        with pytest.raises(ImproperlyConfigured, match="RATE_LIMITS.* must be a dict, not str"):
            get_settings()
