"""Limiters between processes: eight that want permits, one that is killed, stopped, forked, cut off."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from django_tasklock import ConcurrencyLimiter
from django_tasklock.backends import get_backend
from django_tasklock.backends.contract.stores import Permits
from django_tasklock.types import Busy, Grant, Released, fingerprint
from tests.support.permits import a_request, clear_permits, judge_permits
from tests.support.proxy import scripts
from tests.support.stores import eventually, granted, make, stores
from tests.support.twins import TWINS, call
from tests.support.workers import Crew

pytest_plugins = ["tests.support.redis_fixtures"]

pytestmark = pytest.mark.slow
ACQUIRE = scripts("permit_acquire")
RELEASE = scripts("permit_release")
SLACK = 3.0
PROCESSES = 8
TURNS = {"redis": 20, "database": 5}


@pytest.fixture
def crew() -> Iterator[Crew]:
    hired = Crew()
    yield hired
    hired.dismiss()


def remove_all(permits: Permits, name: str) -> None:
    """Leave nothing of what a thread that has ended took."""
    for record in permits.members(name):
        permits.remove(name, record.token)


HIRED = "from django_tasklock import ConcurrencyLimiter"


class TestOverlap:
    @pytest.mark.parametrize("store", stores("redis", "database"))
    def test_eight_processes_are_never_more_than_three_inside_and_three_often_enough(self, crew, store, tmp_path):
        turns, log = TURNS[store], tmp_path / "log"
        clear_permits(store)
        eight = crew.hire_many(PROCESSES, "from tests.support.permit_race import compete")
        for number, process in enumerate(eight):
            process.start(f"compete({store!r}, 'race', {number}, 3, {turns}, {str(log)!r})")
        for process in eight:
            process.done(120)
        lines = log.read_text().splitlines()
        assert len(lines) == 2 * turns * PROCESSES
        assert judge_permits(lines, 3) == (3, [])
        assert make(store).permits.names() == []

    def test_the_judge_sees_a_fourth(self):
        good = [f"enters {who}" for who in "abc"] + [f"leaves {who}" for who in "cab"]
        assert judge_permits(good, 3) == (3, [])
        assert judge_permits([*good[:3], "enters d", *good[3:], "leaves d"], 3) == (4, ["line 3: 4 inside"])
        assert judge_permits([*good[:3], "enters a"], 9)[1][0] == "line 3: a enters twice"
        assert judge_permits(["leaves x"], 3)[1] == ["line 0: x leaves from outside"]
        assert judge_permits(["enters x"], 3)[1] == ["x never left"]


@pytest.mark.redis
class TestDeath:
    def test_a_killed_member_is_none_after_its_lease_and_the_others_stay(self, crew, name):
        """Also when nobody asks meanwhile."""
        lives, dies = crew.hire_many(2, f"{HIRED}\nmine = ConcurrencyLimiter({name!r}, 2, lease=3)\nmine.acquire()")
        token = lives.do("mine.token")
        limiter = ConcurrencyLimiter(name, 2)
        assert limiter.info().used == 2
        assert not limiter.acquire(blocking=False)
        dies.kill()
        killed = time.monotonic()
        eventually(lambda: limiter.info().used == 1, 3 + SLACK)
        assert time.monotonic() - killed < 3 + SLACK
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
        assert waits.done(3 + SLACK) is True

    def test_a_dead_waiter_does_not_delay_the_next_one(self, crew, name):
        """Gold standard 8.28."""
        limiter = ConcurrencyLimiter(name, 1)
        first, second = crew.hire_many(2, f"{HIRED}\nmine = ConcurrencyLimiter({name!r}, 1)")
        with limiter:
            first.start("mine.acquire()")
            eventually(lambda: limiter.info().waiting == 1)
            second.start("mine.acquire()")
            eventually(lambda: limiter.info().waiting == 2)
            first.kill()
        began = time.monotonic()
        assert second.done() is True
        assert time.monotonic() - began < 2

    def test_a_dead_waiter_with_a_lower_limit_does_not_delay_the_next_one(self, crew, name):
        """Its turn would not have come yet, so nothing is sent to it that would show that it is dead."""
        permits = get_backend().permits
        taken = a_request(name, 2)
        granted(permits.acquire(taken))
        waits = crew.hire(f"{HIRED}\nmine = ConcurrencyLimiter({name!r}, 1)")
        waits.start("mine.acquire()")
        eventually(lambda: permits.members(name)[0].waiting == 1)
        assert isinstance(permits.acquire(a_request(name, 2)), Busy)
        waits.kill()
        eventually(lambda: isinstance(permits.acquire(a_request(name, 2)), Grant))
        assert permits.members(name)[0].waiting == 0

    def test_a_process_that_was_stopped_past_its_lease_is_no_member_and_knows_it(self, crew, name):
        stops = crew.hire(f"{HIRED}\nmine = ConcurrencyLimiter({name!r}, 1, lease=2)\nmine.acquire()")
        limiter = ConcurrencyLimiter(name, 1)
        stops.stop()
        assert limiter.acquire(blocking_timeout=10)
        stops.go_on()
        assert stops.do("mine.held") is False
        assert "GONE" in str(stops.do("str(mine.release())"))
        assert limiter.held
        assert limiter.info().used == 1
        limiter.release()

    def test_a_forked_child_has_none_and_leaves_its_parents_block_as_it_is(self, crew, name):
        parent = crew.hire(f"""
            {HIRED}
            import warnings
            warnings.simplefilter("ignore", DeprecationWarning)
            limiter = ConcurrencyLimiter({name!r}, 2, lease=60)
            def fork():
                reading, writing = os.pipe()
                with limiter:
                    other = threading.Thread(target=lambda: (limiter.acquire(), limiter.release()))
                    other.start()
                    other.join()
                    pid = os.fork()
                    if not pid:
                        found = [limiter.held, limiter.taken, len(heartbeat)]
                        try:
                            limiter.release()
                        except TaskLockError as error:
                            found.append("not held" in str(error))
                        found += [limiter.acquire(blocking=False), limiter.info().used, bool(limiter.release())]
                        os.write(writing, repr(found).encode())
                    else:
                        os.waitpid(pid, 0)
                        return eval(os.read(reading, 1000)), limiter.held, limiter.info().used
                os._exit(0)  # the child, out of the block
        """)
        assert parent.do("fork()") == ([False, False, 0, True, True, 2, True], True, 1)


@pytest.mark.redis
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

    def test_a_waiter_survives_the_loss_of_its_connection(self, proxy, name, stranger):
        taken = a_request(name, 1)
        granted(stranger.permits.acquire(taken))
        limiter = ConcurrencyLimiter(name, 1)
        got: list[bool] = []
        thread = threading.Thread(target=lambda: got.append(limiter.acquire(blocking_timeout=20)))
        thread.start()
        eventually(lambda: stranger.permits.members(name)[0].waiting == 1)
        proxy.cut()
        stranger.permits.release(name, taken.token)
        thread.join(20)
        assert got == [True]
        eventually(lambda: stranger.permits.members(name)[0].ttl > 3000)  # renewed: a whole lease
        remove_all(stranger.permits, name)


@pytest.mark.redis
def test_who_may_not_subscribe_polls_and_still_gets_a_permit(store, name, monkeypatch):
    """In no order, as with locks."""
    from redis.exceptions import NoPermissionError

    from django_tasklock.backends.redis import wake

    def refuse(connection: Any, *words: str) -> None:
        raise NoPermissionError(words[0])

    monkeypatch.setattr(wake, "ask", refuse)
    limiter = ConcurrencyLimiter(name, 1)
    got: list[bool] = []
    with limiter:
        thread = threading.Thread(target=lambda: got.append(limiter.acquire(blocking_timeout=20)))
        thread.start()
        eventually(thread.is_alive)
    thread.join(20)
    assert got == [True]
    remove_all(get_backend().permits, name)
