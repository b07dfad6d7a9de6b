"""The Redis script says what the plain Python book says, step by step, with a clock of the test's own."""

from __future__ import annotations

import json
import secrets

import pytest
from hypothesis import HealthCheck, given, settings

from django_tasklock.backends.contract.rates import Terms
from django_tasklock.backends.ledger.state import State
from django_tasklock.backends.redis.rates import SCRIPTS, RedisRates
from django_tasklock.backends.redis.script import Script
from tests.support.rate_simulation import Simulation, random_steps, terms

pytest_plugins = ["tests.support.redis_fixtures"]
pytestmark = pytest.mark.redis

TIME = "local clock = redis.call('TIME')\nlocal time = clock[1] * 1000000 + clock[2]\n"
CLOCK = "test:clock"


class OnAClock(RedisRates):
    """The production scripts; the lines that read the server's clock read a key instead."""

    assert all(script.body.count(TIME) == 1 for script in SCRIPTS.values())
    scripts = {
        verb: Script(script.body.replace(TIME, f"local time = tonumber(redis.call('GET', '{CLOCK}'))\n"))
        for verb, script in SCRIPTS.items()
    }

    def __init__(self, backend, store) -> None:
        super().__init__(backend)
        self.store = store


class ComparedSimulation(Simulation):
    """A simulation whose every question goes to both."""

    rates: OnAClock

    def ask(self, verb, *arguments):
        self.rates.store.set(CLOCK, self.time)
        expected = super().ask(verb, *arguments)
        found = self.rates.run(self.terms, verb, *arguments)
        assert found == (expected if isinstance(expected, tuple | list) else bool(expected)) or expected is None
        return found

    def compare(self) -> None:
        """What they have stored."""
        store, keys = self.rates.store, f"task_lock#rate:%s:{self.terms.name}"
        for name, expected in ("free", self.state.free), ("line", self.state.line):
            found = store.zrange(keys % name, 0, -1, withscores=True)
            assert [(name.decode(), at) for name, at in found] == [(f"{one[1]}:{one[0]}", one[0]) for one in expected]
        stored = {key.decode(): value for key, value in store.hgetall(keys % "meta").items()}
        if told := stored.pop("terms", b"").decode():
            assert told in [terms.text() for terms in self.limits]
            assert Terms.from_text(self.terms.name, told).text() == told
        meta = {key: int(value) for key, value in stored.items()}
        assert {key: meta.get(key, 0) for key in self.state.meta | meta} == self.state.meta | dict.fromkeys(
            meta.keys() - self.state.meta.keys(), 0
        )
        for rate in self.terms.rates:
            flat = [int(number) for number in store.lrange(keys % rate.window, 0, -1)]
            ring = [list(pair) for pair in zip(flat[::3], flat[1::3], flat[2::3], strict=True)][::-1]
            assert ring == self.state.rings.get(str(rate.window), [])
        kept = [keys % part for part in ("free", "line", "meta", *(rate.window for rate in self.terms.rates))]
        assert -1 not in map(store.pttl, kept), "a key has no expiry"
        assert told or not stored


@pytest.mark.slow
@pytest.mark.long
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(limiter=terms(), steps=random_steps())
def test_they_agree(stranger, store, limiter, steps):
    """Refusals, cancels, late wakers, stops, refunds, resets, other terms and a clock that is set back."""
    both = ComparedSimulation(limiter._replace(name=f"twins:{secrets.token_hex(6)}"))
    both.rates = OnAClock(stranger, store)
    for step in steps:
        both.do(step)
        both.compare()
    store.delete("task_lock#rates")  # its times are the test's
    assert State(json.dumps(json.loads(both.state.to_json()))).meta == both.state.meta
