"""The order of publication: numbers, the line of those who drew one, and notes that something waits elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis
from django.conf import settings

from django_tasklock.backends.contract.stores import LockStore
from django_tasklock.types import Released
from tests.support.stores import ALL, an_ask, clear, granted, make, stores

NAME = "video:42"
LINES = ("redis",)


@pytest.fixture(params=stores(*(name for name in ALL if name not in LINES)))
def backend(request) -> Iterator[LockStore]:
    """A backend with an empty store that keeps no lines."""
    clear(request.param)
    backend = make(request.param)
    yield backend
    backend.close_idle()
    backend.close()


@pytest.fixture(params=stores(*LINES))
def keeper(request) -> Iterator[LockStore]:
    """A backend that keeps lines."""
    clear(request.param)
    backend = make(request.param)
    assert backend.keeps_order
    yield backend
    backend.close()


class TestTickets:
    def test_no_two_are_alike_where_lines_are_kept(self, keeper):
        with ThreadPoolExecutor(8) as threads:
            drawn = list(threads.map(lambda number: keeper.next_number(NAME, str(number)), range(400)))
        assert len(set(drawn)) == 400

    def test_a_flushed_store_does_not_go_back(self, keeper):
        """gold standard 8.39: a counter that is reset gives out old numbers."""
        before = keeper.next_number()
        redis_of(keeper).flushdb()
        assert keeper.next_number() > before

    def test_a_clock_that_is_set_back_does_not_matter(self, keeper):
        ahead = keeper.next_number() + 3_600_000_000
        key = keeper.layout.number
        redis_of(keeper).set(key, ahead)
        assert keeper.next_number() == ahead + 1


class TestTheLine:
    def test_an_earlier_number_is_expected_until_its_message_arrives(self, keeper):
        first, second = keeper.next_number(NAME, "a"), keeper.next_number(NAME, "b")
        assert keeper.count_before(NAME, first) == 0
        assert keeper.count_before(NAME, second) == 1
        assert keeper.leave_order(NAME, "a") is True  # b is in it
        assert keeper.count_before(NAME, second) == 0
        assert keeper.leave_order(NAME, "b") is False

    def test_a_message_that_does_not_arrive_can_be_forgotten(self, keeper):
        keeper.next_number(NAME, "lost")
        mine = keeper.next_number(NAME, "b")
        later = keeper.next_number(NAME, "c")
        assert keeper.count_before(NAME, mine, forget=True) == 1
        assert keeper.count_before(NAME, mine) == 0
        assert keeper.count_before(NAME, later) == 1

    def test_it_does_not_stay_for_ever(self, keeper):
        keeper.next_number(NAME, "a")
        key = keeper.layout.order(NAME)
        assert 0 < redis_of(keeper).ttl(key) <= 86_400

    def test_a_release_takes_the_note_along(self, keeper):
        granted(keeper.acquire(an_ask(NAME, "ours")))
        keeper.set_flag(NAME)
        assert keeper.release_and_mark(NAME, "ours", "", 0, clear=True) == (Released.RELEASED, True, False)
        assert keeper.clear_flag(NAME) is False
        granted(keeper.acquire(an_ask(NAME, "ours")))
        assert keeper.release_and_mark(NAME, "ours", "", 0, clear=True).flagged is False
        granted(keeper.acquire(an_ask(NAME, "ours")))
        keeper.set_flag(NAME)
        assert keeper.release_and_mark(NAME, "ours", "", 0, clear=False).flagged is None
        assert keeper.clear_flag(NAME) is True

    def test_a_release_of_somebody_elses_lock_leaves_it(self, keeper):
        keeper.set_flag(NAME)
        assert keeper.release_and_mark(NAME, "mine", "", 0, clear=True) == (Released.GONE, None, False)
        granted(keeper.acquire(an_ask(NAME, "theirs")))
        assert keeper.release_and_mark(NAME, "mine", "", 0, clear=True) == (Released.NOT_YOURS, None, False)
        assert keeper.clear_flag(NAME) is True


class TestTheNewest:
    def test_an_older_number_is_not_recorded_as_the_newest(self, keeper):
        first, second = keeper.next_number(), keeper.next_number()
        assert keeper.record_newest(NAME, second) is True
        assert keeper.record_newest(NAME, second) is True, "it may come again"
        assert keeper.record_newest(NAME, first) is False
        assert keeper.record_newest("video:1", first) is True
        assert keeper.record_newest(NAME, keeper.next_number()) is True


class TestNotes:
    def test_a_note_is_read_once(self, keeper):
        assert keeper.clear_flag(NAME) is False
        keeper.set_flag(NAME)
        keeper.set_flag(NAME)
        assert keeper.clear_flag("video:1") is False
        assert keeper.clear_flag(NAME) is True
        assert keeper.clear_flag(NAME) is False


def test_a_store_that_keeps_none_says_that_one_has_to_look(backend):
    assert not backend.keeps_order
    backend.next_number(NAME, "a")
    assert backend.count_before(NAME, backend.next_number(NAME, "b")) == 0
    assert backend.leave_order(NAME, "a") is True
    assert backend.record_newest(NAME, 2) is True
    assert backend.record_newest(NAME, 1) is True
    backend.set_flag(NAME)
    assert [backend.clear_flag(NAME), backend.clear_flag(NAME)] == [True, True]
    granted(backend.acquire(an_ask(NAME, "ours")))
    assert backend.release_and_mark(NAME, "ours", "", 0, clear=True) == (Released.RELEASED, None, False)


def redis_of(keeper: LockStore) -> redis.Redis:
    """A client of the same server."""
    return redis.Redis.from_url(settings.TASKLOCK["LOCATION"])
