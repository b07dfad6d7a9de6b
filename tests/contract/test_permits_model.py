"""Permits of every store against a plain Python model, in any order of calls. Gold standard 8.4."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from django_tasklock.backends.contract.stores import Waiter
from django_tasklock.types import Grant, Released, Renewal, RenewalResult
from tests.support.permits import clear_permits, lapse
from tests.support.stores import an_ask, make, new_token, stores

NAMES = ("transcode", "search")
LIMITS = st.integers(1, 4)


class Model:
    """One limiter: who has a permit in the order of their grants, and who waits with which limit."""

    def __init__(self) -> None:
        self.members: list[str] = []
        self.queue: list[tuple[str, int]] = []

    def serve(self) -> None:
        while self.queue and len(self.members) < self.queue[0][1]:
            self.members.append(self.queue.pop(0)[0])

    def acquire(self, token: str, limit: int, *, waits: bool = False) -> bool:
        if token not in self.members:
            if waits and token not in dict(self.queue):
                self.queue.append((token, limit))
            elif not self.queue and len(self.members) < limit:
                self.members.append(token)
            self.serve()
        return token in self.members

    def leave(self, token: str) -> bool:
        had = token in self.members
        self.members = [other for other in self.members if other != token]
        self.queue = [place for place in self.queue if place[0] != token]
        self.serve()
        return had


class Machine(RuleBasedStateMachine):
    """``known``: tokens that were ever used, so that all is also tried with those whose time is over."""

    store = ""
    known = Bundle("known")
    waiting = Bundle("waiting")

    def __init__(self) -> None:
        super().__init__()
        clear_permits(self.store)
        self.backend = make(self.store)
        self.permits = self.backend.permits
        self.models = {name: Model() for name in NAMES}
        self.waiters: dict[Waiter, bool] = {}  # whether it saw, when it looked last, that it has a permit

    def teardown(self) -> None:
        for waiter in self.waiters:
            waiter.leave()
        self.backend.close_idle()
        self.backend.close()

    @rule(target=known, name=st.sampled_from(NAMES), limit=LIMITS)
    def acquire(self, name, limit):
        ask = an_ask(name, limit=limit)
        granted = self.models[name].acquire(ask.token, limit)
        assert isinstance(self.permits.acquire(ask), Grant) is granted
        return (name, ask.token)

    @rule(whose=known, limit=LIMITS)
    def acquire_again(self, whose, limit):
        name, token = whose
        granted = self.models[name].acquire(token, limit)
        assert isinstance(self.permits.acquire(an_ask(name, token, limit=limit)), Grant) is granted

    @rule(target=waiting, name=st.sampled_from(NAMES), limit=LIMITS)
    def join(self, name, limit):
        if not self.permits.wakes:
            return multiple()
        waiter = self.permits.waiter(an_ask(name, limit=limit))
        self.look(waiter)
        return waiter

    @rule(waiter=waiting)
    def look(self, waiter):
        granted = self.models[waiter.request.name].acquire(waiter.request.token, waiter.request.limit, waits=True)
        self.waiters[waiter] = isinstance(waiter.acquire(), Grant)
        assert self.waiters[waiter] is granted
        if hasattr(waiter, "seen"):  # in memory a waiter must ask within a second; the machine may be slower than that
            waiter.seen += 3600

    @rule(target=known, waiter=consumes(waiting))
    def give_up(self, waiter):
        """One that has not seen that it was given a permit passes it on; one that has keeps it."""
        name, token = waiter.request.name, waiter.request.token
        waiter.leave()
        if not self.waiters.pop(waiter):
            self.models[name].leave(token)
        return (name, token)

    @rule(whose=known)
    def release(self, whose):
        name, token = whose
        had = self.models[name].leave(token)
        assert self.permits.release(name, token) is (Released.RELEASED if had else Released.GONE)

    @rule(whose=known)
    def remove(self, whose):
        name, token = whose
        had = self.models[name].leave(token)
        removed = self.permits.remove(name, token)
        assert (removed is not None) is had
        assert removed is None or removed.token == token

    @rule(name=st.sampled_from(NAMES), number=st.integers(0, 3))
    def lease_ends(self, name, number):
        for token in self.models[name].members[number : number + 1]:
            lapse(self.store, self.permits, name, token)
            self.models[name].leave(token)
            assert self.permits.release(name, new_token()) is Released.GONE  # somebody looks

    @rule(all_of=st.lists(known, max_size=6, unique=True))
    def renew(self, all_of):
        kept = [
            RenewalResult.RENEWED if token in self.models[name].members else RenewalResult.LOST
            for name, token in all_of
        ]
        assert self.permits.renew([Renewal(name, token, 60_000) for name, token in all_of]) == kept

    @rule(whose=known)
    def extend(self, whose):
        name, token = whose
        assert self.permits.extend(name, token, 60_000, 90_000) is (token in self.models[name].members)

    @invariant()
    def the_store_has_whom_the_model_has(self):
        for name, model in self.models.items():
            found = self.permits.members(name)
            assert [record.token for record in found] == model.members
            assert all(record.waiting == len(model.queue) for record in found)
            self.permits.renew([Renewal(name, token, 60_000) for token in model.members])  # short leases as well
        assert sorted(self.permits.names()) == sorted(name for name, model in self.models.items() if model.members)


@pytest.mark.slow
@pytest.mark.parametrize("store", stores("redis", "memory", "database"))
def test_permits_are_what_the_model_says(store):
    machine = type("Machine", (Machine,), {"store": store})
    examples = {"redis": 40, "memory": 120, "database": 8}[store]
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
