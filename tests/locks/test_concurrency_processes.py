"""Limiters between processes: what a dead one had is free within its lease, and a lost reply is no second permit.

That no more than the limit are inside, whatever happens, is in ``test_storm``.
"""

from __future__ import annotations

import pytest

from django_tasklock import ConcurrencyLimiter
from django_tasklock.types import Released, fingerprint
from tests.support.proxy import scripts
from tests.support.stores import eventually
from tests.support.twins import TWINS, call, subscribers

pytest_plugins = ["tests.support.redis_fixtures", "tests.support.worker_fixtures"]

pytestmark = [pytest.mark.redis, pytest.mark.slow]
ACQUIRE = scripts("permit_acquire")
RELEASE = scripts("permit_release")


HIRED = "from django_tasklock import ConcurrencyLimiter"


class TestDeath:
    def test_a_killed_member_is_none_after_its_lease_and_the_others_stay(self, crew, name):
        """Also when nobody asks meanwhile."""
        lives, dies = crew.hire_many(2, f"{HIRED}\nmine = ConcurrencyLimiter({name!r}, 2, lease=3)\nmine.acquire()")
        token = lives.do("mine.token")
        limiter = ConcurrencyLimiter(name, 2)
        assert limiter.info().used == 2
        assert not limiter.acquire(blocking=False)
        dies.kill()
        eventually(lambda: limiter.info().used == 1)
        assert [member.fingerprint for member in limiter.members()] == [fingerprint(token)]
        assert limiter.acquire(blocking=False)
        limiter.release()
        assert lives.do("mine.held")

    def test_a_waiter_has_the_permit_of_the_dead_within_its_lease(self, crew, name):
        dies = crew.hire(f"{HIRED}\nmine = ConcurrencyLimiter({name!r}, 1, lease=3)\nmine.acquire()")
        waits = crew.hire(f"{HIRED}\nmine = ConcurrencyLimiter({name!r}, 1)")
        waits.start("mine.acquire(blocking_timeout=20)")
        eventually(lambda: ConcurrencyLimiter(name, 1).info().waiting == 1)
        dies.kill()
        assert waits.done() is True

    def test_a_dead_waiter_does_not_delay_the_next_one(self, crew, store, name):
        """Gold standard 8.28."""
        limiter = ConcurrencyLimiter(name, 1)
        first, second = crew.hire_many(2, f"{HIRED}\nmine = ConcurrencyLimiter({name!r}, 1)")
        with limiter:
            first.start("mine.acquire()")
            eventually(lambda: limiter.info().waiting == 1)
            second.start("mine.acquire()")
            eventually(lambda: limiter.info().waiting == 2)
            first.kill()
            eventually(lambda: subscribers(store, name) == 1)  # the server has noticed
        assert str(second.pid) in str(limiter.members()[0].holder)
        assert second.done() is True


class TestStoreTrouble:
    @TWINS
    def test_an_acquire_whose_reply_is_lost_has_one_permit(self, proxy, name, way):
        """Gold standard 8.5."""
        lost = proxy.lose_reply(ACQUIRE)
        limiter = ConcurrencyLimiter(name, 2)
        if way == "sync":
            assert limiter.acquire(blocking=False)
            assert limiter.release() is Released.RELEASED
        else:
            assert call(way, limiter, "acquire", blocking=False)
        assert lost.met
        eventually(lambda: limiter.info().used == (1 if way == "async" else 0))

    def test_a_release_whose_reply_is_lost_is_one(self, proxy, name):
        """Gold standard 8.3."""
        limiter = ConcurrencyLimiter(name, 1)
        limiter.acquire()
        lost = proxy.lose_reply(RELEASE)
        assert limiter.release() is Released.RELEASED
        assert lost.met
        assert limiter.info().used == 0
