"""A wrong setting or duration is refused with what to write instead; a changed setting is read again."""

from __future__ import annotations

import os
import re
from datetime import timedelta
from decimal import Decimal

import django
import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from django_tasklock import RateLimiter
from django_tasklock.backends import get_backend
from django_tasklock.conf import Settings, get_settings, milliseconds, problems
from django_tasklock.exceptions import TaskLockError


class TestMilliseconds:
    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            (1, 1000),
            (0.25, 250),
            (1.0004, 1000),
            (timedelta(minutes=2), 120_000),
            (10 * 365 * 86400, 315_360_000_000),
        ],
    )
    def test_seconds_and_timedeltas(self, value, expected):
        assert milliseconds(value, "timeout") == expected

    @pytest.mark.parametrize(
        "value",
        [0, -1, 0.0001, timedelta(0), float("nan"), float("inf"), 10**400, True, "5", None, Decimal(5)],
        ids=lambda value: f"{value!s:.20}",
    )
    def test_anything_else_is_refused_by_name(self, value):
        with pytest.raises(TaskLockError, match="^timeout ") as caught:
            milliseconds(value, "timeout", name="video:42")
        assert caught.value.name == "video:42"


class TestProblems:
    @pytest.mark.parametrize(
        "given",
        [
            {},
            {"TIMEOUT": 7200, "LEASE": 30},
            {"TIMEOUT": timedelta(hours=2), "LEASE": timedelta(hours=2)},
            {"BACKEND": None, "LOCATION": "redis://localhost/0", "KEY_PREFIX": "site:locks:"},
            {"ON_CONFLICT": "wait", "ON_UNAVAILABLE": "raise"},
        ],
    )
    def test_none(self, given):
        assert problems(given) == []

    @pytest.mark.parametrize(
        ("given", "what", "hint"),
        [
            ([("TIMEOUT", 1)], "must be a dict, not list", "TASKLOCK = {...}"),
            ({"TIMOUT": 5}, "no setting 'TIMOUT'", "'TIMEOUT'"),
            ({"zzz": 1}, "no setting 'zzz'", "Known: BACKEND, LOCATION"),
            ({"PREFETCH_TIMEOUT": 60}, "no setting 'PREFETCH_TIMEOUT'", "remove it"),
            ({"TIMEOUT": 0}, "positive number of seconds or a timedelta, not 0", "3600"),
            ({"LEASE": None}, "positive number of seconds or a timedelta, not None", "60"),
            ({"LEASE": 20, "TIMEOUT": 10}, "TASKLOCK['LEASE'] (20) is longer than TASKLOCK['TIMEOUT'] (10)", "shorter"),
            (
                {"ON_CONFLICT": "ignore"},
                "one of 'skip', 'raise', 'wait', 'retry', 'reject', 'queue', 'coalesce', not 'ignore'",
                "'skip'",
            ),
            ({"ON_UNAVAILABLE": "wait"}, "one of 'run', 'raise', 'skip', not 'wait'", "'run'"),
            ({"LOCATION": ""}, "non-empty text, not ''", "'default'"),
            ({"BACKEND": 5}, "non-empty text, not 5", "None"),
            ({"KEY_PREFIX": "locks"}, "end with a colon, or be a function", "'task_lock:'"),
            ({"KEY_PREFIX": "my app:"}, "without blanks", "'task_lock:'"),
            ({"KEY_PREFIX": "x" * 50 + ":"}, "at most 50", "'task_lock:'"),
        ],
    )
    def test_each_says_what_is_wrong_and_what_to_do(self, given, what, hint):
        [(found, advice)] = problems(given)
        assert what in found
        assert hint in advice

    def test_all_are_found_at_once(self):
        assert len(problems({"TIMEOUT": 0, "LEASE": "x", "TIMOUT": 1})) == 3


class TestGetSettings:
    def test_defaults(self, settings):
        settings.TASKLOCK = {}
        assert get_settings() == Settings()
        del settings.TASKLOCK
        assert get_settings() == Settings()

    def test_read_once_and_again_after_a_change(self):
        with override_settings(TASKLOCK={"TIMEOUT": 100}):
            first = get_settings()
            assert first.TIMEOUT == 100
            assert get_settings() is first
        assert get_settings().TIMEOUT == 3600

    def test_a_wrong_setting_is_not_remembered(self, settings):
        settings.TASKLOCK = {"TIMEOUT": 0}
        with pytest.raises(ImproperlyConfigured):
            get_settings()
        settings.TASKLOCK = {"TIMEOUT": 120}
        assert get_settings().TIMEOUT == 120


def test_a_timeout_below_the_default_lease_shortens_that() -> None:
    """Nobody has asked for the lease of 60 s that would be longer."""
    assert problems({"TIMEOUT": 10}) == []
    assert Settings(TIMEOUT=10).default_spans == (10_000, 10_000)


def test_no_text_of_settings_or_stores_has_a_password(settings) -> None:
    url = "redis://user:s3cret@127.0.0.1:1/0"
    settings.TASKLOCK = {"LOCATION": url, "API_KEYS": {"grafana": "k3y" * 20}}
    backend = get_backend()
    shown = [get_settings(), backend, backend.permits, backend.rates, backend.client, RateLimiter("a", "1/h")]
    for text in (*map(repr, shown), *map(str, shown)):
        assert "s3cret" not in text
        assert "k3yk3y" not in text
    assert "TIMEOUT=3600" in repr(get_settings())
    found = [
        *problems({"LOCATION": [url, 1]}),
        *problems({"LOCATON": url}),
        *problems({"KEY_PREFIX": f"{url}?password=s3cret"}),
    ]
    assert "must be a list of non-empty texts, not ['redis://...@127.0.0.1:1/0', 1]" in found[0][0]
    assert "s3cret" not in str(found)


QUORUM = "django_tasklock.backends.quorum.QuorumBackend"
URLS = ("redis://a:6379/0", "redis://b:6379/0", "redis://c:6379/0", "redis://d:6379/0", "redis://e:6379/0")


@pytest.mark.parametrize(
    ("backend", "location", "says"),
    [
        (QUORUM, list(URLS[:3]), ""),
        (QUORUM, URLS, ""),
        (QUORUM, URLS[0], "has one address"),
        (QUORUM, list(URLS[:1]), "has 1 address, too few"),
        (QUORUM, list(URLS[:2]), "has 2 addresses, too few"),
        (QUORUM, [*URLS[:2], URLS[0]], "has an address twice"),
        (QUORUM, list(URLS[:4]), "survive no more failures than 3 would"),
        (None, list(URLS[:3]), f"set TASKLOCK['BACKEND'] to {QUORUM!r}"),
        ("django_tasklock.backends.redis.RedisBackend", list(URLS[:3]), "cannot use"),
    ],
)
def test_several_addresses_are_a_majoritys(backend: str | None, location: object, says: str) -> None:
    text = " ".join(part for pair in problems({"BACKEND": backend, "LOCATION": location}) for part in pair)
    assert says in text
    assert bool(text) == bool(says)


def test_it_is_the_django_that_its_environment_is_named_after():
    """What an extra wants may bring a newer one than tox asked for."""
    named = re.search(r"django(\d)(\d)$", os.environ.get("TOX_ENV_NAME", ""))
    assert named is None or django.VERSION[:2] == tuple(map(int, named.groups()))
