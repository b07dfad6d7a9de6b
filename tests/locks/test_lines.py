"""The order of publication: tickets, the line of those who drew one, and notes that something waits elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis
from django.conf import settings

from django_tasklock.backends.contract.locks import LockStore
from django_tasklock.types import Released
from tests.support.stores import ALL, Held, an_ask, clear, granted, make, stores

NAME = "video:42"
LINES = ("redis",)


@pytest.fixture(params=stores(*ALL))
def backend(request) -> Iterator[LockStore]:
    """A backend with an empty store."""
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
    assert backend.lines
    yield backend
    backend.close()


class TestTickets:
    def test_each_is_not_lower_than_the_one_before(self, backend):
        drawn = [backend.ticket(NAME, str(number)) for number in range(50)]
        assert drawn == sorted(drawn)

    def test_no_two_are_alike_where_lines_are_kept(self, keeper):
        with ThreadPoolExecutor(8) as threads:
            drawn = list(threads.map(lambda number: keeper.ticket(NAME, str(number)), range(400)))
        assert len(set(drawn)) == 400

    def test_they_are_the_time_in_microseconds(self, backend):
        assert 1_750_000_000_000_000 < backend.ticket() < 10_000_000_000_000_000

    def test_a_flushed_store_does_not_go_back(self, keeper):
        """gold standard 8.39: a counter that is reset gives out old numbers."""
        before = keeper.ticket()
        redis_of(keeper).flushdb()
        assert keeper.ticket() > before

    def test_a_clock_that_is_set_back_does_not_matter(self, keeper):
        ahead = keeper.ticket() + 3_600_000_000
        key = keeper.layout.ticket.split(b"\r\n")[1].decode()
        redis_of(keeper).set(key, ahead)
        assert keeper.ticket() == ahead + 1


class TestTheLine:
    def test_who_drew_before_is_expected_until_it_arrives(self, keeper):
        first, second = keeper.ticket(NAME, "a"), keeper.ticket(NAME, "b")
        assert keeper.expects(NAME, first) == 0
        assert keeper.expects(NAME, second) == 1
        assert keeper.arrived(NAME, "a") is True  # b is in it
        assert keeper.expects(NAME, second) == 0
        assert keeper.arrived(NAME, "b") is False

    def test_lines_of_other_names_are_other_lines(self, keeper):
        keeper.ticket("video:1", "a")
        assert keeper.expects(NAME, keeper.ticket(NAME, "b")) == 0

    def test_who_does_not_come_is_forgotten(self, keeper):
        keeper.ticket(NAME, "lost")
        mine = keeper.ticket(NAME, "b")
        later = keeper.ticket(NAME, "c")
        assert keeper.expects(NAME, mine, forget=True) == 1
        assert keeper.expects(NAME, mine) == 0
        assert keeper.expects(NAME, later) == 1

    def test_leaving_twice_or_unknown_changes_nothing(self, keeper):
        keeper.ticket(NAME, "a")
        assert keeper.arrived(NAME, "unknown") is True
        assert keeper.arrived(NAME, "a") is False
        assert keeper.arrived(NAME, "a") is False

    def test_a_ticket_without_a_member_joins_no_line(self, keeper):
        keeper.ticket(NAME)
        assert keeper.arrived(NAME, "") is False

    def test_it_does_not_stay_for_ever(self, keeper):
        keeper.ticket(NAME, "a")
        key = keeper.layout.line(NAME).split(b"\r\n")[1].decode()
        assert 0 < redis_of(keeper).ttl(key) <= 86_400

    def test_a_release_takes_notes_along(self, keeper):
        granted(keeper.acquire(an_ask(NAME, "ours")))
        keeper.flag("again:1")
        assert keeper.release_noted(Held(NAME, "ours"), (NAME, "again:1")) == (Released.RELEASED, {"again:1"})
        assert keeper.flagged("again:1") is False
        granted(keeper.acquire(an_ask(NAME, "ours")))
        assert keeper.release_noted(Held(NAME, "ours"), (NAME,)) == (Released.RELEASED, frozenset())

    def test_a_release_of_somebody_elses_lock_leaves_them(self, keeper):
        keeper.flag(NAME)
        assert keeper.release_noted(Held(NAME, "mine"), (NAME,)) == (Released.GONE, None)
        granted(keeper.acquire(an_ask(NAME, "theirs")))
        assert keeper.release_noted(Held(NAME, "mine"), (NAME,)) == (Released.NOT_YOURS, None)
        assert keeper.flagged(NAME) is True

    def test_where_none_is_kept_one_has_to_look(self, backend):
        if not backend.lines:
            backend.ticket(NAME, "a")
            assert backend.expects(NAME, backend.ticket(NAME, "b")) == 0
            assert backend.arrived(NAME, "a") is True


class TestTheNewest:
    def test_an_older_one_is_told(self, keeper):
        first, second = keeper.ticket(), keeper.ticket()
        assert keeper.newest(NAME, second) is True
        assert keeper.newest(NAME, second) is True, "it may come again"
        assert keeper.newest(NAME, first) is False
        assert keeper.newest("video:1", first) is True
        assert keeper.newest(NAME, keeper.ticket()) is True

    def test_where_that_is_not_known_each_is(self, backend):
        if not backend.lines:
            assert backend.newest(NAME, 2) is True
            assert backend.newest(NAME, 1) is True


class TestNotes:
    def test_a_note_is_read_once(self, keeper):
        assert keeper.flagged(NAME) is False
        keeper.flag(NAME)
        keeper.flag(NAME)
        assert keeper.flagged("video:1") is False
        assert keeper.flagged(NAME) is True
        assert keeper.flagged(NAME) is False

    def test_where_none_is_kept_one_has_to_look(self, backend):
        if not backend.lines:
            backend.flag(NAME)
            assert backend.flagged(NAME) is True
            assert backend.flagged(NAME) is True
            granted(backend.acquire(an_ask(NAME, "ours")))
            assert backend.release_noted(Held(NAME, "ours"), (NAME,)) == (Released.RELEASED, None)


def redis_of(keeper: LockStore) -> redis.Redis:
    """A client of the same server."""
    return redis.Redis.from_url(settings.TASKLOCK["LOCATION"])
