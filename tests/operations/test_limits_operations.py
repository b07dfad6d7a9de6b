"""What operators are told of limiters, and may do to them."""

from __future__ import annotations

import secrets
import time
from typing import Any

import pytest
import redis
from django.conf import settings as django_settings

from django_tasklock import ConcurrencyLimiter, RateLimiter, TaskLockError
from django_tasklock.backends import get_backend
from django_tasklock.models import AuditEntry
from django_tasklock.operations import Actor
from django_tasklock.operations.limits.permits import get_permits, list_permits, release_permit
from django_tasklock.operations.limits.rates import change_limit, get_limit, list_limits, reset_limit
from django_tasklock.operations.limits.values import LimitOutcome, LimitState, LimitView
from tests.support.stores import stores

pytestmark = pytest.mark.django_db(transaction=True)

BACKENDS = {
    "redis": {},
    "database": {"BACKEND": "django_tasklock.backends.database.DatabaseBackend", "LOCATION": "default"},
}
ME = Actor("somebody")


@pytest.fixture(params=stores("redis", "database"))
def kept(request: pytest.FixtureRequest, settings: Any) -> str:
    """On this store."""
    settings.TASKLOCK = {**settings.TASKLOCK, **BACKENDS[request.param]}
    return str(request.param)


@pytest.fixture
def name() -> str:
    """A limiter's name that no other test uses."""
    return f"limit:{secrets.token_hex(6)}"


def view(name: str) -> LimitView:
    found = get_limit(name).limit
    assert found is not None
    return found


class TestLooking:
    def test_one_that_only_some_code_has(self, kept: str, name: str) -> None:
        """No setting names it: its rates are those of its last caller."""
        limiter = RateLimiter(name, "3/h", "2/m")
        for _ in range(3):
            limiter.reserve()
        assert limiter.try_acquire() is None
        seen = view(name)
        assert (seen.rates, seen.configured) == (("3/h", "2/m"), False)
        assert [(one.rate, one.limit, one.used, one.ahead) for one in seen.usage.windows] == [
            ("3/h", 3, 2, 1),
            ("2/m", 2, 2, 1),
        ]
        assert (seen.state, seen.waiting, seen.usage.refused) == (LimitState.FULL, 1, 1)
        assert 3590 < seen.usage.next < 3620
        RateLimiter(name, "5/h").reserve()
        assert view(name).rates == ("5/h",)

    def test_one_of_the_settings_that_nobody_has_used(self, kept: str, name: str, settings: Any) -> None:
        settings.TASKLOCK = {**settings.TASKLOCK, "RATE_LIMITS": {name: {"rates": ["10/s", "50/d"]}}}
        [seen] = list_limits(name).limits
        assert (seen.rates, seen.configured, seen.state) == (("10/s", "50/d"), True, LimitState.OPEN)
        assert get_backend().rates.names(10_000).count(name) == 0, "looking leaves nothing behind"

    def test_tenants(self, kept: str, name: str, settings: Any) -> None:
        """Counted in the list, and shown on the page; the default tenant is one."""
        settings.TASKLOCK = {**settings.TASKLOCK, "RATE_LIMITS": {name: {"rates": "100/m", "tenants": "2/m"}}}
        limiter = RateLimiter(name)
        limiter.tenant("acme").acquire()
        limiter.tenant("acme").reserve()
        limiter.tenant(None).acquire()
        [seen] = list_limits(name).limits
        assert (seen.name, seen.tenants) == (name, 2)
        detail = get_limit(name)
        assert {one.tenant: one.usage.used for one in detail.tenants if one.usage} == {"acme": 2, "": 1}
        tenant = view(f"{name}:tenant:acme")
        assert (tenant.limiter, tenant.tenant, tenant.rates, tenant.state) == (name, "acme", ("2/m",), LimitState.FULL)
        assert [one.name for one in list_limits(name=tenant.name).limits] == [tenant.name]

    def test_tenants_hide_no_other_limiter(
        self, kept: str, name: str, settings: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """However many names are read of an index: each limiter's tenants have their own."""
        monkeypatch.setattr("django_tasklock.operations.limits.rates.MAX_NAMES", 3)
        monkeypatch.setattr("django_tasklock.operations.limits.rates.MAX_TENANTS", 2)
        RateLimiter(f"{name}:other", "9/m").acquire()
        limiter = RateLimiter(name, "100/m", tenants="2/m")
        for number in range(5):
            time.sleep(0.003)  # the last use is known to the millisecond
            limiter.tenant(number).reserve()
        assert {one.name: one.tenants for one in list_limits(name).limits} == {name: 5, f"{name}:other": 0}
        assert [one.name for one in list_limits("OTHER").limits] == [f"{name}:other"]
        assert [one.name for one in list_limits(name=f"{name}:tenant:0").limits] == [f"{name}:tenant:0"]
        detail = get_limit(name)
        assert [one.tenant for one in detail.tenants] == ["4", "3"]
        assert detail.limit is not None
        assert detail.limit.tenants == 5

    def test_pages(self, kept: str, name: str) -> None:
        """Following ``next`` visits each once, in the order of one long page."""
        names = [f"{name}:{number}" for number in range(5)]
        for one in names:
            RateLimiter(one, "5/m").reserve()
            time.sleep(0.003)  # the last use is known to the millisecond
        pages = [list_limits(name, offset=offset, limit=2) for offset in (0, 2, 4)]
        assert [(page.total, page.next) for page in pages] == [(5, 2), (5, 4), (5, None)]
        seen = [one.name for page in pages for one in page.limits]
        assert seen == [one.name for one in list_limits(name).limits]
        assert sorted(seen) == names
        for limit, start in ((0, 0), (201, 0), (10, -1)):
            with pytest.raises(TaskLockError, match="limit must be"):
                list_limits(limit=limit, offset=start)

    def test_nothing_is_looked_for_by_its_key(self, name: str) -> None:
        """A keyspace scan holds up everybody: lists come from indexes (gold standard 8.20)."""
        RateLimiter(name, "5/m").reserve()
        with redis.Redis.from_url(django_settings.TASKLOCK["LOCATION"]) as store:
            store.config_resetstat()
            list_limits()
            list_permits()
            get_limit(name)
            assert not {"cmdstat_keys", "cmdstat_scan"} & store.info("commandstats").keys()


class TestActing:
    def test_change_and_reset(self, kept: str, name: str) -> None:
        """In force for the limiter's own callers at once; also of one that is known only from the store."""
        limiter = RateLimiter(name, "10/m")
        limiter.acquire()
        result = change_limit(name, 0.3, by=ME)
        assert (result.outcome, result.share, result.before) == (LimitOutcome.CHANGED, 0.3, 1.0)
        limiter.acquire()
        limiter.acquire()
        assert limiter.try_acquire() is None
        assert view(name).usage.windows[0].limit == 3
        assert change_limit(name, 1, by=ME).before == 0.3
        assert limiter.try_acquire() is not None
        limiter.penalize(30)
        result = reset_limit(name, by=ME, reason="new month")
        assert (result.outcome, bool(result)) == (LimitOutcome.RESET, True)
        seen = view(name)
        assert (seen.state, seen.waiting, seen.usage.used, seen.usage.paused) == (LimitState.OPEN, 0, 0, 0)
        last, *others = get_limit(name).history
        assert (last.actor, last.action, last.reason) == ("somebody", "reset_limit", "new month")
        assert "4 used and 0 ahead of 10/m" in last.outcome
        assert [act.action for act in others] == ["change_limit"] * 2
        for share in (0, 1.01, -1, True, float("nan")):
            with pytest.raises(TaskLockError, match="share"):
                change_limit(name, share, by=ME)

    def test_a_permit(self, kept: str, name: str) -> None:
        """Of the member that was named, and of no other."""
        first, other = ConcurrencyLimiter(name, 2), ConcurrencyLimiter(f"{name}:other", 2)
        with first, other:
            [member] = (seen := get_permits(name)).members
            assert (seen.limit, seen.used, seen.waiting) == (2, 1, 0)
            assert name in [one.name for one in list_permits().limiters]
            for wrong in ("", "0" * 12, get_permits(other.name).members[0].fingerprint):
                assert release_permit(name, wrong, by=ME).outcome is LimitOutcome.NOT_HELD
            assert AuditEntry.objects.count() == 0
            result = release_permit(name, member.fingerprint, by=ME, reason="stuck")
            assert (result.outcome, result.member.holder) == (LimitOutcome.RELEASED, member.holder)
            assert get_permits(name) is None
            assert get_permits(other.name).used == 1
            [act] = get_limit(name).history
            assert (act.action, act.reason) == ("release_permit", "stuck")
            assert not release_permit(name, member.fingerprint, by=ME)
