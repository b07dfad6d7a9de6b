"""Any sequence of verbs against a plain model of them: what is answered, and what every listing then shows."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from django_tasklock.backends.contract import lists
from django_tasklock.backends.contract.lists import Counts, Query
from django_tasklock.backends.contract.stores import LockStore
from django_tasklock.types import Busy, Grant, Released, Renewal, RenewalResult
from tests.support.stores import LISTING, an_ask, clear, eventually, make, new_token, stores

NAMES = ("a", "b*", "ü")
STEP = 100_000  # ms between two leases: more than a run takes, so that the model needs no clock

which = st.sampled_from(NAMES)
who = st.sampled_from(["holder", "former", "nobody"])
span = st.integers(1, 20)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("acquire"), which, who, span),
        st.tuples(st.just("acquire"), which, st.just("nobody"), span),
        st.tuples(st.just("follow"), which, who, span),
        st.tuples(st.just("release"), which, who),
        st.tuples(st.just("extend"), which, who, span),
        st.tuples(st.just("renew"), which, who, span),
        st.tuples(st.just("remove"), which, who),
        st.tuples(st.just("force"), which),
        st.tuples(st.just("ask"), which, who),
        st.tuples(st.just("set_expiry"), which, who),
        st.tuples(st.just("lapse"), which),
        st.tuples(st.just("prune"), st.integers(0, 3)),
    ),
    min_size=5,
    max_size=30,
)


@dataclass
class Lock:
    """What is known of a lock that is held, or was until its lease lapsed."""

    token: str
    ends: int
    until: int
    fence: int
    asked: bool = False


@dataclass
class Run:
    """A backend and what it should say."""

    backend: LockStore
    held: dict[str, Lock] = field(default_factory=dict)
    lapsed: dict[str, Lock] = field(default_factory=dict)
    former: dict[str, str] = field(default_factory=dict)
    fences: dict[str, int] = field(default_factory=dict)
    number: int = 0

    def token(self, name: str, who: str) -> str:
        lock = self.held.get(name) or self.lapsed.get(name)
        known = {"holder": lock.token if lock else "", "former": self.former.get(name, "")}
        return known.get(who) or new_token()

    def time(self, span: int) -> int:
        self.number += 1
        return span * STEP + self.number * 50  # no two end at once

    def held_with(self, name: str, token: str) -> Lock | None:
        lock = self.held.get(name)
        return lock if lock is not None and lock.token == token else None

    def end_hold(self, name: str) -> None:
        self.former[name] = self.held.pop(name).token

    def record_grant(self, name: str, token: str, answer: object, time: int) -> None:
        assert isinstance(answer, Grant), answer
        assert answer.fence > self.fences.get(name, 0)
        self.fences[name] = answer.fence
        self.lapsed.pop(name, None)
        self.held[name] = Lock(token, time, time, answer.fence)

    def acquire(self, name: str, who: str, span: int) -> None:
        token, time = self.token(name, who), self.time(span)
        answer = self.backend.acquire(an_ask(name, token, ttl=time, hold=time))
        if lock := self.held_with(name, token):
            assert answer == Grant(lock.fence, time)
            lock.ends = time
        elif name in self.held:
            assert isinstance(answer, Busy)
            assert answer.record.token == self.held[name].token
        else:
            self.record_grant(name, token, answer, time)

    def follow(self, name: str, who: str, span: int) -> None:
        token, time, before = new_token(), self.time(span), self.token(name, who)
        answer = self.backend.acquire(an_ask(name, token, ttl=time, hold=time)._replace(supersedes=before))
        if self.held_with(name, before):
            self.end_hold(name)
        if name in self.held:
            assert isinstance(answer, Busy)
        else:
            self.record_grant(name, token, answer, time)

    def release(self, name: str, who: str) -> None:
        token = self.token(name, who)
        answer = self.backend.release(name, token)
        if self.held_with(name, token):
            assert answer is Released.RELEASED
            self.end_hold(name)
        else:
            assert answer is (Released.NOT_YOURS if name in self.held else Released.GONE)

    def extend(self, name: str, who: str, span: int) -> None:
        token, time = self.token(name, who), self.time(span)
        lock = self.held_with(name, token)
        assert self.backend.extend(name, token, time, time) is (lock is not None)
        if lock is not None:
            lock.ends = lock.until = time

    def renew(self, name: str, who: str, span: int) -> None:
        token, time = self.token(name, who), self.time(span)
        lock = self.held_with(name, token)
        (answer,) = self.backend.renew([Renewal(name, token, time)])
        assert answer is (
            RenewalResult.LOST if lock is None else RenewalResult.ASKED if lock.asked else RenewalResult.RENEWED
        )
        if lock is not None:
            lock.ends = time

    def remove(self, name: str, who: str) -> None:
        token = self.token(name, who)
        if name in self.lapsed:
            return  # what lapsed is pruned, not removed
        record = self.backend.remove(name, token)
        lock = self.held_with(name, token)
        assert (record and record.token) == (lock and lock.token)
        if lock is not None:
            self.end_hold(name)

    def force(self, name: str) -> None:
        record = self.backend.remove(name)
        assert (record and record.token) == ((name in self.held and self.held[name].token) or None)
        if name in self.held:
            self.end_hold(name)
        self.lapsed.pop(name, None)

    def ask(self, name: str, who: str) -> None:
        token = self.token(name, who)
        lock = self.held_with(name, token)
        assert self.backend.ask_release(name, token) is (lock is not None)
        if lock is not None:
            lock.asked = True

    def set_expiry(self, name: str, who: str) -> None:
        assert self.backend.set_expiry(name, self.token(name, who), 1) is False

    def lapse(self, name: str) -> None:
        lock = self.held.pop(name, None)
        if lock is not None:
            self.backend.renew([Renewal(name, lock.token, 1)])  # it may be over when the answer is made
            eventually(lambda: self.backend.get(name) is None)
            self.lapsed[name] = lock

    def prune(self, limit: int) -> None:
        assert self.backend.prune(limit) == min(limit, len(self.lapsed))
        for name in list(self.lapsed)[:limit]:  # in the order in which they lapsed
            del self.lapsed[name]

    def compare(self) -> None:
        """Everything that can be asked agrees with the model."""
        for name in NAMES:
            record, lock = self.backend.get(name), self.held.get(name)
            assert (record and record.token) == (lock and lock.token)
            if record and lock:
                assert (record.fence, bool(record.asked)) == (lock.fence, lock.asked)
        assert self.backend.counts() == Counts(len(self.held), 0, 0, len(self.lapsed))
        pages = {order: lists.page(self.backend, Query(order=order)) for order in ("expiry", "left", "age")}
        for page in pages.values():
            assert (page.total, page.next) == (len(self.held), None)
        assert [one.name for one in pages["expiry"].records] == sorted(self.held, key=lambda name: self.held[name].ends)
        assert [one.name for one in pages["left"].records] == sorted(self.held, key=lambda name: self.held[name].until)
        assert sorted(one.name for one in pages["age"].records) == sorted(self.held)
        ages = [one.at for one in pages["age"].records]
        assert ages == sorted(ages, reverse=True)
        assert [one.name for one in lists.page(self.backend, Query("orphaned")).records] == list(self.lapsed)


@pytest.mark.slow
@pytest.mark.parametrize("store", stores(*LISTING))
@settings(
    max_examples=int(os.environ.get("TASKLOCK_TEST_EXAMPLES", "25")),
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(steps=steps)
def test_any_sequence_of_verbs(store, steps):
    clear(store)
    run = Run(make(store))
    try:
        for verb, *arguments in steps:
            getattr(run, verb)(*arguments)
            run.compare()
    finally:
        run.backend.close_idle()
        run.backend.close()
