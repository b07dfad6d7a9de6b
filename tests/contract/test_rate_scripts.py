"""The Redis scripts say what the plain Python book says, step by step, with a clock of the test's own."""

from __future__ import annotations

import json
import secrets

import pytest
from hypothesis import HealthCheck, given, settings

from django_tasklock.backends.contract.rates import Terms
from django_tasklock.backends.ledger.state import State
from django_tasklock.backends.redis.rates import RedisRates, body_of
from tests.support.rate_simulation import Simulation, random_steps, terms

pytest_plugins = ["tests.support.redis_fixtures"]
pytestmark = pytest.mark.redis

TIME = "local clock = redis.call('TIME')\nlocal time = clock[1] * 1000000 + clock[2]\n"
CLOCK = "test:clock"


class OnAClock(RedisRates):
    """The production scripts; the lines that read the server's clock read a key instead."""

    def __init__(self, backend, store) -> None:
        super().__init__(backend)
        self.store = store
        for verb in self.bodies:
            assert body_of(verb).count(TIME) == 1
            self.bodies[verb] = body_of(verb).replace(TIME, f"local time = tonumber(redis.call('GET', '{CLOCK}'))\n")


class ComparedSimulation(Simulation):
    """A simulation whose every question goes to both."""

    rates: OnAClock

    def ask(self, verb, *arguments):
        store = self.rates.store
        store.set(CLOCK, self.time)
        # The script notes it only where there is something to write.
        self.state.meta["idx"] = int(store.hget(f"task_lock#rate:meta:{self.terms.name}", "idx") or 0)
        expected = super().ask(verb, *arguments)
        found = getattr(self.rates, verb)(self.terms, *arguments)
        assert found == expected, (verb, arguments)
        return found

    def compare(self) -> None:
        """What they have stored."""
        store, keys = self.rates.store, f"task_lock#rate:%s:{self.terms.name}"
        free = [(int(score), member.decode()) for member, score in store.zrange(keys % "free", 0, -1, withscores=True)]
        assert free == self.state.free
        line = store.zrange(keys % "line", 0, -1, withscores=True)
        assert [[int(slot), int(member.split(b":")[0])] for member, slot in line] == self.state.line
        gone = {member.decode() for member in store.zrange(keys % "gone", 0, -1)}
        assert {number for number, buried in self.state.gone.items() if buried} == {
            one for one in gone if "+" not in one
        }
        assert set(self.state.gone) == {one.rstrip("+") for one in gone}
        stored = {key.decode(): value for key, value in store.hgetall(keys % "meta").items()}
        for own in ("exp", "idx", "calm", "buried", "stood"):
            stored.pop(own, None)
        if told := stored.pop("terms", b"").decode():
            asked = Terms.from_text(self.terms.name, told).script_arguments()
            assert asked in [terms.script_arguments() for terms in self.limits]
        meta = {key: int(value) for key, value in stored.items()}
        assert {key: self.state.meta.get(key, 0) for key in meta} == meta
        for rate in self.terms.rates:
            flat = [int(number) for number in store.lrange(keys % rate.window, 0, -1)]
            ring = [list(pair) for pair in zip(flat[::2], flat[1::2], strict=True)][::-1]
            assert ring == self.state.rings.get(str(rate.window), [])


ALGORITHMS = ("window", "window", "window", "paced", "bucket")


@pytest.mark.slow
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(limiter=terms(ALGORITHMS), steps=random_steps())
def test_they_agree(stranger, store, limiter, steps):
    """Refusals, cancels, late wakers, stops, refunds, resets and a clock that is set back."""
    both = ComparedSimulation(limiter._replace(name=f"twins:{secrets.token_hex(6)}"))
    both.rates = OnAClock(stranger, store)
    for step in steps:
        both.do(step)
    both.compare()
    store.delete("task_lock#rates")  # its times are the test's
    assert State(json.dumps(json.loads(both.state.to_json()))).meta == both.state.meta
