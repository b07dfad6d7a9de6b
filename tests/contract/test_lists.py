"""Lists above every store: every order, filter and page, whatever moves meanwhile; sorted up to ten thousand."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from django_tasklock import TaskLockError
from django_tasklock.backends.contract import lists
from django_tasklock.backends.contract.codec import text_of
from django_tasklock.backends.contract.lists import Query
from django_tasklock.backends.contract.stores import LockStore
from django_tasklock.types import Holder, Renewal
from tests.support.stores import ALL, LISTING, an_ask, clear, eventually, granted, make, stores

ORDERS = [(order, down) for order in ("expiry", "age", "left") for down in (False, True)]


@pytest.fixture(params=stores("memory"))
def backend(request) -> Iterator[LockStore]:
    """A backend with an empty store."""
    clear(request.param)
    backend = make(request.param)
    yield backend
    backend.close_idle()
    backend.close()


listing = pytest.mark.parametrize("backend", stores(*LISTING), indirect=True)


def fill(backend: LockStore, number: int) -> list[str]:
    """So many locks, in the order in which they expire."""
    names = [f"video:{one:02}" for one in range(number)]
    for one, name in enumerate(names):
        granted(backend.acquire(an_ask(name, name * 4, ttl=100_000 + one * 1000, hold=900_000 - one * 1000)))
    return names


def found(backend: LockStore, **query) -> list[str]:
    """The names on one page."""
    return [record.name for record in lists.page(backend, Query(**query)).records]


def walk(backend: LockStore, query: Query) -> list[str]:
    """The names on all pages, as whoever follows ``next`` sees them."""
    names: list[str] = []
    while True:
        page = lists.page(backend, query)
        assert len(page.records) <= query.limit
        names += [record.name for record in page.records]
        if page.next is None:
            return names
        query = query._replace(offset=page.next)


# name: lease and hold in seconds, in order of acquisition
MANY = {"d": (50, 900), "a": (8, 800), "f": (40, 100), "b": (300, 400), "e": (5, 700), "c": (60, 60), "g": (20, 500)}


@pytest.mark.parametrize(("order", "descending"), ORDERS)
def test_every_order_and_state_in_pages_of_every_size(backend, order, descending):
    """Those that are not all live ones come in order of expiry, whatever is asked for."""
    for number in range(3):
        backend.acquire(an_ask(f"dead:{number}", ttl=1 + number))
    for name, (lease, hold) in MANY.items():
        granted(backend.acquire(an_ask(name, ttl=lease * 1000, hold=hold * 1000)))
        eventually(lambda name=name: (record := backend.get(name)) and record.now > record.at)
    by = {
        "expiry": lambda name: MANY[name][0],
        "age": lambda name: -list(MANY).index(name),
        "left": lambda name: MANY[name][1],
    }
    wanted = sorted(MANY, key=by[order], reverse=descending)
    query = Query(order=order, descending=descending)
    for size in (1, 2, 3, 7, 8):
        assert walk(backend, query._replace(limit=size)) == wanted
    middle = lists.page(backend, query._replace(offset=2, limit=3))
    assert [record.name for record in middle.records] == wanted[2:5]
    assert (middle.total, middle.next, middle.more) == (7, 5, False)
    for beyond in (7, 99):
        assert lists.page(backend, query._replace(offset=beyond)) == ([], 7, None, False)
    turn = reversed if descending else iter
    assert walk(backend, query._replace(which="expiring", limit=1)) == [*turn(["e", "a"])]
    assert walk(backend, query._replace(which="orphaned", limit=2)) == [*turn(["dead:0", "dead:1", "dead:2"])]
    for which, total in backend.counts()._asdict().items():
        assert lists.page(backend, query._replace(which=which)).total == total


LITERAL = ["a*", "a?", "[ab]", "a%", "a_b", "a\\b", "a.b", "%d", "(a", "^a$", "{x}", "'; --", "ab", "видé影"]


@pytest.mark.parametrize("order", ["expiry", "age"])
def test_text_is_literal(backend, order):
    """Gold standard 8.38: glob, LIKE and pattern characters are letters like others."""
    for name in LITERAL:
        backend.acquire(an_ask(f"video:{name}:1"))
    for text in [*LITERAL, "*", "?", "%", "_", "[", "]", "\\", ".", "$", "^", "VIDEO:A", ":", "deo:", "none"]:
        wanted = sorted(f"video:{name}:1" for name in LITERAL if text.lower() in f"video:{name}:1".lower())
        assert sorted(walk(backend, Query(order=order, text=text, limit=2))) == wanted, text


def test_the_task_as_a_whole_and_who_has_waiters(backend):
    holders = {
        "a": Holder(task="app.tasks.work", row="app.video:1"),
        "b": Holder(task="app.tasks.work_more", row="app.video:11"),
        "c": Holder(task='say "hi" \\ ü', row="app.video:1"),
        "d": Holder(host="app.tasks.work", task_id='"task":"app.tasks.work"'),
    }
    for name, holder in holders.items():
        backend.acquire(an_ask(name, holder=text_of(holder)))
    assert found(backend, task="app.tasks.work") == ["a"]
    assert found(backend, task='say "hi" \\ ü') == ["c"]
    assert found(backend, task="App.tasks.work") == found(backend, task="work") == []
    assert found(backend, task="app.tasks.work", text="b") == []
    assert found(backend, waiting=True) == []
    with backend.waiter(an_ask("b")) as place:
        place.acquire()
        assert found(backend, waiting=True) == ["b"]
        assert [record.waiting for record in lists.page(backend, Query(waiting=True)).records] == [1]


@listing
@pytest.mark.parametrize("moved", [range(0), range(3, 7), range(4, 20), range(20)])
def test_what_is_renewed_or_released_between_two_parts_hides_no_other(backend, monkeypatch, moved):
    monkeypatch.setattr(lists, "PART", 5)
    names = fill(backend, 20)
    assert [record.name for record in lists.read(backend)[0]] == names
    seen: list[str] = []
    for number, part in enumerate(lists.each(backend)):
        seen += [record.name for record in part]
        if number == 0:
            backend.renew([Renewal(names[one], names[one] * 4, 500_000) for one in moved])
        if number == 1:
            for one in range(3):
                backend.release(names[one], names[one] * 4)
    assert sorted(seen) == names
    assert len(seen) == len(set(seen))


def test_of_more_than_are_sorted_a_page_says_that_there_are_more(backend, monkeypatch):
    monkeypatch.setattr(lists, "PART", 3)
    names = fill(backend, 8)
    for most, more in ((7, True), (8, False)):
        monkeypatch.setattr(lists, "MOST", most)
        for query in (Query(order="age"), Query(descending=True), Query(text="video"), Query(text="nothing")):
            page = lists.page(backend, query)
            assert page.more is more
            wanted = names[:most] if query.text != "nothing" else []
            assert (sorted(record.name for record in page.records), page.total) == (wanted, len(wanted))
        plain = lists.page(backend, Query(limit=5))
        assert (plain.total, plain.next, plain.more) == (8, 5, False)
        assert found(backend, offset=5) == names[5:]
    kept = lists.page(backend, Query(), lambda one: one.name > names[5]).records
    assert [record.name for record in kept] == names[6:]


@pytest.mark.parametrize("backend", stores(*(name for name in ALL if name not in LISTING)), indirect=True)
def test_a_store_that_cannot_list_says_so(backend):
    for verb in (lambda: lists.page(backend, Query()), backend.counts, backend.records):
        with pytest.raises(TaskLockError, match="cannot list its keys; the Redis and the database backend"):
            verb()
    assert backend.prune(10) == 0
