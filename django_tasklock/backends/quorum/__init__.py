"""Locks that a majority of independent Redis instances has granted.

The algorithm is Redlock, by Salvatore Sanfilippo (redis.io, "Distributed Locks with Redis"). It differs in these
points: the instances keep a lock longer than the requested lease, by the greatest error of their clocks (a hundredth,
and 2 ms), so that the holder need not subtract it; split votes are settled by an order of the contenders and not by
chance; there are fences (``proposals``); an instance that came back empty knows that it did (``recovery``).
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any

from django_tasklock.backends.contract.lists import Counts, Which
from django_tasklock.backends.contract.rates import RateStore
from django_tasklock.backends.contract.stores import DAY, LockStore, Permits
from django_tasklock.backends.quorum.asking import Answers, Instances
from django_tasklock.backends.quorum.ballot import (
    Ballot,
    ballot_of,
    codes_of,
    most_of,
    record_of,
    released,
    renewed,
    token_in,
)
from django_tasklock.backends.quorum.giving_back import give_back, missing_of
from django_tasklock.backends.quorum.proposals import Proposals
from django_tasklock.backends.quorum.recovery import Recovery
from django_tasklock.backends.quorum.scripts import ACQUIRE, GET, RELEASE, STATE, QuorumKeys, as_leased, padded
from django_tasklock.backends.redis import (
    ASK_RELEASE,
    CONDITION,
    COUNTS,
    EXTEND,
    LIST,
    ORPHANED,
    PRUNE,
    RENEW,
    SET_EXPIRY,
    TALLY,
    listed,
    listing,
    orphan,
)
from django_tasklock.backends.redis.script import Script
from django_tasklock.conf import Settings, expiring
from django_tasklock.exceptions import BackendUnavailable, TaskLockError
from django_tasklock.types import (
    AcquireRequest,
    Busy,
    Grant,
    InstanceState,
    Record,
    Released,
    Renewal,
    RenewalResult,
    monotonic,
)

__all__ = ["QuorumBackend"]

ONE_STORE = (
    "limits need one Redis, as with TASKLOCK['BACKEND'] = 'django_tasklock.backends.redis.RedisBackend' and one address"
    " in TASKLOCK['LOCATION'], or the database backend"
)
TRIES = 8
"""The most rounds of one acquisition, while votes are split or fences refused."""
APART = 0.002  # seconds between the first two rounds, at random; each time half as much again
LONGEST_APART = 0.03
MARGIN = 200
"""The locks read before and after a part of a list: the instances may differ."""


class QuorumBackend(LockStore):
    """Locks on three or more independent Redis servers, of which a majority grants, renews and reports a lock.

    It works while a minority is down, silent or cut off, and while at most a minority has lost its data. It cannot
    promise exclusion to a process that is paused for longer than its lease: use the guarded row for that.

    Waiters poll. There are no permits and no rate limits: they are counts, on which instances that are asked in
    different orders would not agree in one round trip.
    """

    def __init__(self, settings: Settings) -> None:
        self._keys = QuorumKeys(settings.prefix)
        self.instances = Instances(settings.LOCATION, self._keys)
        self._needed = self.instances.needed
        self.proposals = Proposals()
        """The numbers that this process proposes as fences."""
        hold, lease = settings.default_spans
        longest = max(lease, hold if settings.TIMEOUT is not None else 0)
        self.recovery = Recovery(self.instances, self._keys, longest)
        """What admits instances that came back empty."""

    @property
    def permits(self) -> Permits:
        raise TaskLockError(f"A majority of Redis servers has no permits for a concurrency limiter: {ONE_STORE}")

    @property
    def rates(self) -> RateStore:
        raise TaskLockError(f"A majority of Redis servers keeps no rate limits: {ONE_STORE}")

    def acquire(self, request: AcquireRequest) -> Grant | Busy:
        fence, ballot, answers = self._vote(request)
        if fence is not None:
            return Grant(fence, request.ttl_ms)
        doubt = self._give_up(request, answers)
        self.instances.replies(answers)
        if ballot.voters < self._needed:
            left = max(ballot.abstain, default=0) / 1000
            raise BackendUnavailable(
                f"{ballot.voters} of {len(answers)} Redis instances vote, {self._needed} are needed: the others came"
                f" back empty, and abstain until the leases they may have forgotten have ended, {left:.1f} s from now",
                doubt=doubt,
            )
        record = record_of(ballot.busy, self._keys, request.name)
        return Busy(record, 0 if record is None else record.ttl)

    def _vote(self, request: AcquireRequest) -> tuple[int | None, Ballot, Answers]:
        """Ask for votes until this or another contender has a majority. Return the fence if it is this one."""
        keys = *self._keys.lock(request.name), self._keys.marker, self._keys.share(request.name)
        lease = request.token, padded(request.ttl_ms), request.hold_ms, request.holder, request.supersedes
        again = ""
        answers: Answers = []
        ballot = ballot_of(answers, self._needed)
        for number in range(TRIES):
            began, sent, proposal = monotonic(), self.proposals.now(), self.proposals.next()
            answers = self.instances.ask(ACQUIRE, keys, (*lease, proposal, again), enough=self._is_won)
            ballot = ballot_of(answers, self._needed)
            others = [*ballot.behind, *(fence for fence in ballot.granted if fence != proposal)]
            if others:
                self.proposals.learn(max(others), sent)
            if self.instances.one_is_empty() and self.recovery.admit() and ballot.fence is None:
                continue
            if ballot.fence is not None:
                in_time = (monotonic() - began) * 1000 < request.ttl_ms
                return (ballot.fence if in_time else None), ballot, answers
            if len(ballot.granted) + len(ballot.behind) >= self._needed:
                again = "raise"  # some have the hold already, or a greater fence: all are to record the same one
                continue
            if ballot.lost or ballot.answered < self._needed:
                break
            if ballot.voters >= self._needed and not ballot.first(request.token):
                break
            time.sleep(min(LONGEST_APART, APART * 1.5**number) * random.uniform(0.5, 1.5))
        return None, ballot, answers

    def _is_won(self, answers: Answers) -> bool:
        return ballot_of(answers, self._needed).fence is not None

    def _give_up(self, request: AcquireRequest, answers: Answers) -> bool:
        """Release what instances have granted, or may have granted, without waiting. Return whether there is any."""
        those = [
            index
            for index, (reply, error, _) in enumerate(answers)
            if (type(reply) is int if error is None else error.doubt)
        ]
        keys = self._keys.lock(request.name)
        self.instances.ask(RELEASE, keys, (request.token, ""), only=those, enough=lambda answers: True)
        return bool(those)

    def release(self, name: str, token: str) -> Released:
        def by_most(answers: Answers) -> bool:
            return sum(isinstance(answer.reply, list) for answer in answers) >= self._needed

        answers = self.instances.ask(RELEASE, self._keys.lock(name), (token, ""), enough=by_most)
        outcome = released(answers, self._needed)
        if outcome is None:
            raise self.instances.too_few(answers)
        return outcome

    def extend(self, name: str, token: str, ttl: int, hold: int) -> bool:
        def is_known(answers: Answers) -> bool:
            return renewed(codes_of(answers), self._needed) is not None

        answers = self.instances.ask(EXTEND, self._keys.lock(name), (token, padded(ttl), hold), enough=is_known)
        return bool(self._renewed(codes_of(answers), answers))

    def renew(self, batch: Sequence[Renewal]) -> list[RenewalResult]:
        if not batch:
            return []
        locks = [self._keys.lock(item.name)[0] for item in batch]
        leases = [part for item in batch for part in (item.token, padded(item.ttl))]
        answers = self.instances.ask(RENEW, (self._keys.index, *locks), leases)
        unknown = [None] * len(batch)
        columns = list(zip(*(codes or unknown for codes in codes_of(answers)), strict=True))
        missing = missing_of(batch, columns, self._needed)
        if missing:
            give_back(self.instances, self._keys, missing)
            if self.instances.one_is_empty():
                self.recovery.admit()
        return [self._renewed(codes, answers) for codes in columns]

    def _renewed(self, codes: Sequence[int | None], answers: Answers) -> RenewalResult:
        """Return the result for one lease. Raises ``BackendUnavailable`` if it is unknown whether a majority has it."""
        result = renewed(codes, self._needed)
        if result is None:
            raise self.instances.too_few(answers)
        return result

    def get(self, name: str) -> Record | None:
        found = self.instances.replies(self.instances.ask(GET, self._keys.lock(name)[:1]))
        there = [[left, value, now] for now, left, value in found if value is not None]
        return self._held(name, there, len(found))

    def _held(self, name: str, there: list[list[Any]], answered: int) -> Record | None:
        """Return the record of a lock that some instances have; ``None`` if no holder can have a majority."""
        tokens = [token_in(reply) for reply in there]
        silent = len(self.instances.of) - answered
        if not there or max(map(tokens.count, tokens)) + silent < self._needed:
            return None
        return record_of(there, self._keys, name)

    def records(self, which: Which = "live", *, offset: int = 0, limit: int = 1000) -> list[Record]:
        """Return a part of the union of all instances.

        A lock of a minority is listed, too: it is being acquired, was released while an instance did not answer, or has
        lost its majority. No one holds it. An offset is exact while the instances have the same locks; what an instance
        lacks, and ``MARGIN`` does not cover, moves it.
        """
        first = max(0, offset - MARGIN)
        wanted = listing(self._keys.layout, which, first, offset - first + limit + MARGIN)
        found: dict[str, list[Record]] = {}
        for reply in self._all(LIST, [self._keys.index], *wanted):
            for one in listed(self._keys.layout, reply):
                found.setdefault(one.name, []).append(one)
        if which == "orphaned":  # a lapsed lock of a minority had no holder, and may have one on the others
            found = {name: those for name, those in found.items() if len(those) >= self._needed}
        in_order = sorted((max(one.lease_ends for one in those), name) for name, those in found.items())
        return [as_leased(most_of(found[name])) for _, name in in_order[offset - first :][:limit]]

    def get_orphaned(self, name: str) -> Record | None:
        found = [orphan(name, reply) for reply in self._all(ORPHANED, [self._keys.layout.lock(name), self._keys.index])]
        those = [one for one in found if one is not None]  # of a minority: see records()
        return max(those, key=lambda one: one.lease_ends) if len(those) >= self._needed else None

    def counts(self) -> Counts:
        """Return the counts, each from the instance that has the most."""
        return Counts(*map(max, zip(*self._all(COUNTS, [self._keys.index], expiring()), strict=True)))

    def prune(self, limit: int) -> int:
        """Drop orphaned locks from each instance. Return the number that a majority has dropped at least."""
        return int(sorted(self._all(PRUNE, [self._keys.index], limit))[-self._needed])

    def ask_release(self, name: str, token: str) -> bool:
        return bool(token) and sum(self._all(ASK_RELEASE, self._keys.lock(name)[:1], token)) >= self._needed

    def set_expiry(self, name: str, token: str, ttl: int) -> bool:
        return any(self._all(SET_EXPIRY, self._keys.lock(name), token, ttl))

    def remove(self, name: str, token: str | None = None) -> Record | None:
        arguments = token or "", "any" if token is None else "remove"
        found = self.instances.replies(self.instances.ask(RELEASE, self._keys.lock(name), arguments, again=False))
        return self._held(name, [reply for reply in found if isinstance(reply, list)], len(found))

    def tally(self, name: str, number: int = 1, *, ttl: int = DAY) -> int:
        """Return the greatest counter of a majority. Every addition has reached one instance of it, at least."""
        return int(max(self._all(TALLY, [self._keys.layout.flag(name)], number, ttl)))

    def _condition(self) -> tuple[int | None, str | None]:
        found = self._all(CONDITION, ())
        clocks = sorted(int(clock) for clock, _ in found)
        policies = [policy.decode() for _, policy in found]
        return clocks[len(clocks) // 2], next((one for one in policies if one != "noeviction"), policies[0])

    def instance_states(self) -> Sequence[InstanceState]:
        answers = self.instances.ask(STATE, self._keys.state, again=False, patient=True)
        return [
            InstanceState(instance.name, "", None if answer.reply[1] < 0 else answer.reply[1] / 1000)
            if answer.error is None
            else InstanceState(instance.name, str(answer.error), None)
            for instance, answer in zip(self.instances.of, answers, strict=True)
        ]

    def _all(self, script: Script, keys: Sequence[str], *arguments: str | int) -> list[Any]:
        """Run a script on all instances, and return the replies of a majority or more."""
        return self.instances.replies(self.instances.ask(script, keys, arguments))

    def close(self) -> None:
        self.instances.close()
