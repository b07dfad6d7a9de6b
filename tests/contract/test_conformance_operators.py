"""The verbs that operators use, on every store: pages, counts, asking, bounding, forgetting."""

from __future__ import annotations

import itertools

import pytest

from django_tasklock import TaskLockError
from django_tasklock.backends.contract import lists
from django_tasklock.backends.contract.codec import text_of
from django_tasklock.backends.contract.lists import Counts, Query
from django_tasklock.backends.contract.stores import LockStore
from django_tasklock.conf import EXPIRING
from django_tasklock.types import Holder, Released, Renewal, RenewalResult
from tests.support.stores import (
    ALL,
    BEYOND,
    LISTING,
    QUEUEING,
    an_ask,
    clear,
    eventually,
    granted,
    make,
    new_token,
    stores,
)

SHORT = 120  # ms: a lease that is to lapse
ORDERS = ("expiry", "age", "left")


@pytest.fixture(params=stores(*ALL, *BEYOND, slow="quorum-3"))
def backend(request) -> LockStore:
    """A backend with an empty store."""
    clear(request.param)
    backend = make(request.param)
    yield backend
    backend.close_idle()
    backend.close()


listing = pytest.mark.parametrize("backend", stores(*LISTING, *BEYOND, slow="quorum-3"), indirect=True)
queueing = pytest.mark.parametrize("backend", stores("redis", "memory", *QUEUEING), indirect=True)
not_listing = pytest.mark.parametrize("backend", stores(*(name for name in ALL if name not in LISTING)), indirect=True)


def tick(backend: LockStore, name: str) -> None:
    """Wait until the store's clock has gone on since ``name`` was acquired."""
    eventually(lambda: (record := backend.get(name)) and record.now > record.at)


def lapse(backend: LockStore, *names: str) -> None:
    """Wait until nobody holds them."""
    eventually(lambda: all(backend.get(name) is None for name in names))


def names(backend: LockStore, *args, **query) -> list[str]:
    """The names on one page."""
    return [record.name for record in lists.page(backend, Query(*args, **query)).records]


def walk(backend: LockStore, query: Query) -> list[str]:
    """The names on all pages, as whoever follows ``next`` sees them."""
    found: list[str] = []
    for _ in range(1000):
        page = lists.page(backend, query)
        assert len(page.records) <= query.limit
        found += [record.name for record in page.records]
        if page.next is None:
            return found
        query = query._replace(offset=page.next)
    raise AssertionError(f"no end of {query}")


# name: lease and hold in seconds, in order of acquisition
MANY = {"d": (50, 900), "a": (8, 800), "f": (40, 100), "b": (300, 400), "e": (5, 700), "c": (60, 60), "g": (20, 500)}


def fill(backend: LockStore) -> dict[str, dict[str, int]]:
    """Seven locks of seven ages, and what they are ordered by."""
    for name, (lease, hold) in MANY.items():
        granted(backend.acquire(an_ask(name, ttl=lease * 1000, hold=hold * 1000)))
        tick(backend, name)
    records = {name: backend.get(name) for name in MANY}
    return {
        "expiry": {name: lease for name, (lease, _) in MANY.items()},
        "age": {name: -record.at for name, record in records.items()},
        "left": {name: hold for name, (_, hold) in MANY.items()},
    }


@listing
class TestPages:
    @pytest.mark.parametrize("descending", [False, True], ids=["up", "down"])
    @pytest.mark.parametrize("order", ORDERS)
    def test_every_order_both_ways_in_pages_of_every_size(self, backend, order, descending):
        by = fill(backend)[order]
        wanted = sorted(by, key=by.__getitem__, reverse=descending)
        page = lists.page(backend, Query(order=order, descending=descending))
        assert [record.name for record in page.records] == wanted
        assert (page.total, page.next) == (7, None)
        for size in (1, 2, 3, 7, 8):
            assert walk(backend, Query(order=order, descending=descending, limit=size)) == wanted
        middle = lists.page(backend, Query(order=order, descending=descending, offset=2, limit=3))
        assert [record.name for record in middle.records] == wanted[2:5]
        assert (middle.total, middle.next) == (7, 5)
        assert lists.page(backend, Query(order=order, descending=descending, offset=7)) == ([], 7, None, False)
        assert lists.page(backend, Query(order=order, descending=descending, offset=99)) == ([], 7, None, False)

    @pytest.mark.parametrize("descending", [False, True], ids=["up", "down"])
    @pytest.mark.parametrize("order", ORDERS)
    def test_every_kind(self, backend, order, descending):
        """Those that are not all live ones come in order of expiry, whatever is asked for."""
        fill(backend)
        for number in range(3):
            backend.acquire(an_ask(f"dead:{number}", ttl=SHORT + number))
        lapse(backend, "dead:0", "dead:1", "dead:2")
        turn = reversed if descending else iter
        query = Query(order=order, descending=descending, limit=2)
        assert walk(backend, query._replace(which="expiring")) == [*turn(["e", "a"])]
        assert walk(backend, query._replace(which="no_expiry")) == []
        assert walk(backend, query._replace(which="orphaned")) == [*turn(["dead:0", "dead:1", "dead:2"])]
        assert sorted(walk(backend, query)) == sorted(MANY)
        assert backend.counts() == Counts(live=7, expiring=2, no_expiry=0, orphaned=3)
        for which, total in backend.counts()._asdict().items():
            assert lists.page(backend, query._replace(which=which)).total == total

    def test_a_record_says_what_get_says(self, backend):
        holder = Holder("web1", 7, "b", "app.tasks.t", "id-1", 2, "m-1", "videos.video:42", True)
        backend.acquire(an_ask("video:1", ttl=5000, hold=9000, holder=text_of(holder)))
        (listed,), found = lists.page(backend, Query()).records, backend.get("video:1")
        assert listed.holder == found.holder == holder
        for field in ("name", "token", "at", "until", "fence", "waiting", "asked"):
            assert getattr(listed, field) == getattr(found, field)
        assert 0 < found.ttl - 1 <= listed.ttl <= 5000  # a millisecond that has begun: Redis rounds, an index does not

    def test_an_empty_store(self, backend):
        for order, which in itertools.product(ORDERS, Counts._fields):
            assert lists.page(backend, Query(which, order)) == ([], 0, None, False)
        assert backend.counts() == Counts(0, 0, 0, 0)

    def test_renewing_and_extending_move_a_lock_in_every_order_that_they_touch(self, backend):
        mine = {name: an_ask(name, ttl=20_000 + number, hold=30_000 + number) for number, name in enumerate("abc")}
        for name, ask in mine.items():
            backend.acquire(ask)
            tick(backend, name)
        backend.renew([Renewal("a", mine["a"].token, 90_000)])
        assert names(backend) == ["b", "c", "a"]
        assert names(backend, order="left") == ["a", "b", "c"]
        backend.extend("b", mine["b"].token, 95_000, 99_000)
        assert names(backend) == ["c", "a", "b"]
        assert names(backend, order="left") == ["a", "c", "b"]
        assert names(backend, order="age", descending=True) == ["a", "b", "c"]
        backend.acquire(
            mine["c"]._replace(token=new_token(), ttl_ms=97_000, hold_ms=97_000, supersedes=mine["c"].token)
        )
        assert names(backend) == ["a", "b", "c"]
        assert names(backend, order="left") == ["a", "c", "b"]

    def test_a_lock_that_is_taken_again_is_as_old_as_its_new_holder(self, backend):
        first = an_ask("a")
        backend.acquire(first)
        tick(backend, "a")
        backend.acquire(an_ask("b"))
        tick(backend, "b")
        backend.release("a", first.token)
        backend.acquire(an_ask("a"))
        assert names(backend, order="age", descending=True) == ["b", "a"]

    @pytest.mark.parametrize("descending", [False, True], ids=["up", "down"])
    @pytest.mark.parametrize("order", ORDERS)
    def test_a_page_skips_any_number_of_expired_locks(self, backend, order, descending):
        """They are the oldest, and what crashed holders leave: more than a page looks at."""
        dead = [f"dead:{number}" for number in range(120)]
        for name in dead:
            backend.acquire(an_ask(name, ttl=100, hold=200))
        lapse(backend, *dead[-3:])
        backend.acquire(an_ask("alive"))
        eventually(lambda: backend.counts().live == 1)  # of several instances one may have heard of the last ones late
        query = Query(order=order, descending=descending, limit=10)
        page = lists.page(backend, query)
        assert [record.name for record in page.records] == ["alive"]
        assert (page.total, page.next) == (1, None)
        assert backend.counts() == Counts(1, 0, 0, 120)


LITERAL = ["a*", "a?", "[ab]", "a%", "a_b", "axb", "a\\b", "a.b", "%d", "(a", "-", "^a$", "{x}", "'; --", "ab"]


class TestSearching:
    @pytest.mark.parametrize("order", ORDERS)
    @listing
    def test_text_is_literal(self, backend, order):
        """Gold standard 8.38: glob, LIKE and pattern characters are letters like others."""
        for name in LITERAL:
            backend.acquire(an_ask(f"video:{name}:1"))
        for text in [*LITERAL, "*", "?", "%", "_", "[", "]", "\\", ".", "$", "^", "VIDEO:A", ":", "deo:", "none"]:
            wanted = sorted(f"video:{name}:1" for name in LITERAL if text.lower() in f"video:{name}:1".lower())
            assert sorted(walk(backend, Query(order=order, text=text))) == wanted, text
            assert sorted(walk(backend, Query(order=order, text=text, limit=1))) == wanted, text

    @listing
    def test_text_in_any_script(self, backend):
        for name in ("видео:1", "影片:1", "vidéo:1", "🎬:1", "video:1"):
            backend.acquire(an_ask(name))
        for text in ("видео", "影片", "dé", "🎬"):
            assert names(backend, text=text) == [name for name in names(backend) if text in name]
            assert len(names(backend, text=text)) == 1

    @listing
    def test_the_prefix_of_the_keys_is_no_part_of_a_name(self, backend):
        backend.acquire(an_ask("video:1"))
        assert names(backend, text="task_lock") == []
        assert names(backend, text="video:1") == ["video:1"]

    @listing
    def test_task_and_waiting(self, backend):
        holders = {
            "a": Holder(task="app.tasks.work", row="app.video:1"),
            "b": Holder(task="app.tasks.work_more", row="app.video:11"),
            "c": Holder(task='say "hi" \\ ü', row="app.video:1"),
            "d": Holder(host="app.tasks.work", task_id='"task":"app.tasks.work"'),
        }
        for name, holder in holders.items():
            backend.acquire(an_ask(name, holder=text_of(holder)))
        assert names(backend, task="app.tasks.work") == ["a"]
        assert names(backend, task='say "hi" \\ ü') == ["c"]
        assert names(backend, task="App.tasks.work") == names(backend, task="work") == []
        assert names(backend, task="app.tasks.work", text="b") == []
        assert names(backend, waiting=True) == []

    @queueing
    def test_somebody_waits(self, backend):
        for name in "abc":
            backend.acquire(an_ask(name))
        with backend.waiter(an_ask("b")) as place:
            place.acquire()
            assert names(backend, waiting=True) == ["b"]
            assert [record.waiting for record in lists.page(backend, Query(waiting=True)).records] == [1]
        assert names(backend, waiting=True) == []

    @pytest.mark.parametrize("descending", [False, True], ids=["up", "down"])
    @pytest.mark.parametrize("order", ORDERS)
    @listing
    def test_what_is_found_is_paged_without_a_miss_or_a_repetition(self, backend, order, descending):
        for number in range(60):
            backend.acquire(an_ask(f"{'odd' if number % 2 else 'even'}:{number}", hold=600_000 + number))
        for size in (1, 7, 30, 31):
            query = Query(order=order, descending=descending, text="odd", limit=size)
            found = walk(backend, query)
            assert len(found) == len(set(found)) == 30
            assert found == [name for name in walk(backend, query._replace(text="", limit=13)) if "odd" in name]
            assert lists.page(backend, query).total == 30


class TestAsking:
    def test_the_holder_hears_of_it_when_it_renews(self, backend):
        mine = an_ask("video:1", ttl=5000)
        backend.acquire(mine)
        assert backend.get("video:1").asked == 0
        assert backend.renew([Renewal("video:1", mine.token, 5000)]) == [RenewalResult.RENEWED]
        assert backend.ask_release("video:1", mine.token) is True
        record = backend.get("video:1")
        assert 0 < record.at <= record.asked <= record.now
        assert record.token == mine.token
        for _ in range(2):
            assert backend.renew([Renewal("video:1", mine.token, 5000)]) == [RenewalResult.ASKED]
        assert backend.release("video:1", mine.token) is Released.RELEASED

    def test_asking_again_changes_nothing(self, backend):
        mine = an_ask("video:1")
        backend.acquire(mine)
        backend.ask_release("video:1", mine.token)
        first = backend.get("video:1")
        eventually(lambda: backend.get("video:1").now > first.asked)
        assert backend.ask_release("video:1", mine.token) is True
        assert backend.get("video:1").asked == first.asked
        assert backend.get("video:1").until == first.until

    def test_it_takes_nothing_from_the_lease(self, backend):
        mine = an_ask("video:1", ttl=50_000)
        backend.acquire(mine)
        backend.ask_release("video:1", mine.token)
        assert 40_000 < backend.get("video:1").ttl <= 50_000

    def test_it_outlasts_an_extension_and_a_second_grant_to_the_same_holder(self, backend):
        mine = an_ask("video:1")
        backend.acquire(mine)
        backend.ask_release("video:1", mine.token)
        asked = backend.get("video:1").asked
        granted(backend.acquire(mine))
        assert backend.extend("video:1", mine.token, 70_000, 70_000) is True
        assert backend.get("video:1").asked == asked
        assert backend.renew([Renewal("video:1", mine.token, 5000)]) == [RenewalResult.ASKED]

    def test_another_holder_is_not_asked(self, backend):
        """Gold standard 8.43: the request names who is meant."""
        mine, other = an_ask("video:1"), an_ask("video:1")
        backend.acquire(mine)
        assert backend.ask_release("video:1", other.token) is False
        assert backend.ask_release("video:1", "") is False
        assert backend.get("video:1").asked == 0
        backend.ask_release("video:1", mine.token)
        backend.release("video:1", mine.token)
        assert backend.ask_release("video:1", mine.token) is False
        backend.acquire(other)
        assert backend.ask_release("video:1", mine.token) is False
        assert backend.get("video:1").asked == 0
        assert backend.renew([Renewal("video:1", other.token, 5000)]) == [RenewalResult.RENEWED]

    def test_a_request_for_release_does_not_apply_to_the_next_holder(self, backend):
        first = an_ask("video:1")
        backend.acquire(first)
        backend.ask_release("video:1", first.token)
        then = an_ask("video:1")._replace(supersedes=first.token)
        granted(backend.acquire(then))
        assert backend.get("video:1").asked == 0
        assert backend.renew([Renewal("video:1", then.token, 5000)]) == [RenewalResult.RENEWED]

    def test_many_renewals_at_once_each_with_its_own_answer(self, backend):
        asks = [an_ask(f"video:{number}") for number in range(7)]
        for ask in asks:
            backend.acquire(ask)
        backend.ask_release("video:2", asks[2].token)
        backend.remove("video:4")
        answers = backend.renew([Renewal(ask.name, ask.token, 9000) for ask in asks])
        assert answers == [
            RenewalResult.ASKED if n == 2 else RenewalResult.LOST if n == 4 else RenewalResult.RENEWED for n in range(7)
        ]

    @listing
    def test_pages_show_it(self, backend):
        mine = an_ask("video:1")
        backend.acquire(mine)
        backend.ask_release("video:1", mine.token)
        assert [record.asked for record in lists.page(backend, Query()).records] == [backend.get("video:1").asked]


@listing
class TestForgetting:
    def test_lapsed_locks_a_few_at_a_time(self, backend):
        dead = [f"dead:{number}" for number in range(5)]
        for number, name in enumerate(dead):
            backend.acquire(an_ask(name, ttl=SHORT + 5 * number))
        backend.acquire(an_ask("alive"))
        lapse(backend, *dead)
        assert backend.prune(2) == 2
        assert names(backend, "orphaned") == dead[2:]
        assert backend.prune(10) == 3
        assert backend.prune(10) == 0
        assert names(backend) == names(backend, order="age") == names(backend, order="left") == ["alive"]
        assert backend.counts() == Counts(1, 0, 0, 0)

    def test_a_lock_that_exists_is_never_forgotten(self, backend):
        again = an_ask("again", ttl=SHORT)
        backend.acquire(again)
        lapse(backend, "again")
        granted(backend.acquire(an_ask("again")))
        granted(backend.acquire(an_ask("alive")))
        assert backend.prune(10) == 0
        assert sorted(names(backend)) == ["again", "alive"]

    def test_a_forgotten_lock_is_free_and_its_fence_goes_on(self, backend):
        first = an_ask("video:1", ttl=SHORT)
        before = granted(backend.acquire(first)).fence
        lapse(backend, "video:1")
        backend.prune(10)
        assert backend.release("video:1", first.token) is Released.GONE
        assert backend.renew([Renewal("video:1", first.token, 5000)]) == [RenewalResult.LOST]
        assert granted(backend.acquire(an_ask("video:1"))).fence > before


class TestRemoving:
    def test_only_from_the_holder_that_is_named(self, backend):
        """Gold standard 8.43."""
        mine, other = an_ask("video:1"), an_ask("video:1")
        backend.acquire(mine)
        assert backend.remove("video:1", other.token) is None
        assert backend.remove("video:1", "") is None
        assert backend.get("video:1").token == mine.token
        assert backend.remove("video:1", mine.token).token == mine.token
        granted(backend.acquire(other))
        assert backend.remove("video:1", mine.token) is None
        assert backend.get("video:1").token == other.token


class TestBounding:
    def test_a_lock_that_has_an_end_keeps_it(self, backend):
        mine = an_ask("video:1", ttl=50_000)
        backend.acquire(mine)
        for token in (mine.token, new_token(), ""):
            assert backend.set_expiry("video:1", token, 1000) is False
        assert backend.set_expiry("nothing", "", 1000) is False
        assert 40_000 < backend.get("video:1").ttl <= 50_000
        assert backend.get("nothing") is None


@not_listing
def test_a_store_that_cannot_list_says_so(backend):
    for verb in (lambda: lists.page(backend, Query()), backend.counts, backend.records):
        with pytest.raises(TaskLockError, match="cannot list its keys"):
            verb()
    assert backend.prune(10) == 0


def test_expiring_is_less_than_a_default_lease_is_ever_left_with():
    """A lease of 60 s is renewed when 40 s are left: nothing healthy is called expiring."""
    assert EXPIRING < 40_000
