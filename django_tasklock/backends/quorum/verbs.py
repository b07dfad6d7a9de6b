"""Acquire, release and renew by majority, after the Redlock algorithm of Salvatore Sanfilippo (redis.io, "Distributed
Locks with Redis").

It differs from Redlock in these points: the instances keep a lock longer than the requested lease, by the greatest
error of their clocks (a hundredth, and 2 ms), so that the holder need not subtract it; split votes are settled by an
order of the contenders and not by chance; there are fences (``proposals``); an instance that came back empty knows that
it did (``recovery``).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import chain
from typing import Any

from django_tasklock.backends.quorum.asking import Answers, Pause, Question, Verb, replies, too_few
from django_tasklock.backends.quorum.ballot import (
    Ballot,
    ballot_of,
    busy_of,
    codes_of,
    granted_alike,
    record_of,
    released_codes,
    renewed,
    said,
    token_in,
    verdict,
)
from django_tasklock.backends.quorum.giving_back import give_back, missing_of
from django_tasklock.backends.quorum.proposals import Proposals
from django_tasklock.backends.quorum.recovery import Recovery
from django_tasklock.backends.quorum.scripts import ACQUIRE, QuorumKeys, padded
from django_tasklock.backends.redis import EXTEND, GET, RELEASE, RENEW
from django_tasklock.backends.redis.script import bulk
from django_tasklock.exceptions import BackendUnavailable
from django_tasklock.types import AcquireRequest, Busy, Grant, Record, Released, Renewal, RenewalResult, monotonic

TRIES = 8
"""The most rounds of one acquisition, while votes are split or fences refused."""
APART = 0.002  # seconds between the first two rounds, at random; each time half as much again
LONGEST_APART = 0.03


class Verbs:
    """The verbs as generators of requests, which evaluate the answers. ``Rounds`` sends them."""

    def __init__(self, keys: QuorumKeys, number: int, longest: int) -> None:
        self.keys = keys
        self.number = number
        self.needed = number // 2 + 1
        self.proposals = Proposals()
        self.recovery = Recovery(keys, number, self.needed, longest)
        self._met_empty = False

    def too_late(self, reply: object) -> None:
        """Record the answer of an instance that was not waited for."""
        self._met_empty |= reply == b"empty"

    def acquire(self, request: AcquireRequest) -> Verb[Grant | Busy]:
        """Acquire the lock if a majority grants it in time; otherwise release what was, or may have been, granted."""
        fence, ballot, answers = yield from self.vote(request)
        if fence is not None:
            return Grant(fence, request.ttl_ms)
        left = frozenset(ballot.granted) | frozenset(index for index in ballot.silent if answers[index].sent)
        if left:
            yield self.giving_back(request, left)
        return self.busy(request, ballot, answers)

    def giving_back(self, request: AcquireRequest, those: frozenset[int]) -> Question:
        """Return the request that releases what these instances have granted, or may have granted."""
        tail = self.keys.layout.keys(request.name) + bulk(request.token)
        return Question(RELEASE, tail, enough=lambda answers: True, again=False, only=those)

    def busy(self, request: AcquireRequest, ballot: Ballot, answers: Answers) -> Busy:
        """Return the busy answer with the holder. Raises ``BackendUnavailable`` if no majority can tell."""
        if ballot.voters < self.needed:
            raise self.without_voters(ballot, answers)
        return busy_of(ballot, self.keys, request.name)

    def without_voters(self, ballot: Ballot, answers: Answers) -> BackendUnavailable:
        """Return the error for a caller if no majority votes."""
        if ballot.voters + len(ballot.abstain) + len(ballot.empty) < self.needed:
            return too_few(answers, self.needed)
        left = max(ballot.abstain.values(), default=0) / 1000
        return BackendUnavailable(
            f"{ballot.voters} of {self.number} Redis instances vote, {self.needed} are needed: the others came back"
            f" empty, and abstain until the leases they may have forgotten have ended, {left:.1f} s from now",
            doubt=bool(ballot.silent or ballot.granted),
        )

    def vote(self, request: AcquireRequest) -> Verb[tuple[int | None, Ballot, Answers]]:
        """Ask for votes until this or another contender has a majority. Return the fence if it is this one."""
        again = False
        answers: Answers = []
        ballot = ballot_of(answers, self.needed)
        for number in range(TRIES):
            began = monotonic()
            sent = self.proposals.now()
            tail = self.keys.acquiring(request, self.proposals.next(), again)
            answers = yield Question(ACQUIRE, tail, enough=self._granted)
            ballot = ballot_of(answers, self.needed)
            if ballot.behind:
                self.proposals.learn(max(ballot.behind.values()), sent)
            if ballot.empty and (yield from self.recovery.admit()) and not ballot.won:
                continue
            if ballot.won:
                fence = ballot.fence
                if fence is None:  # some instances had the hold already: all are to record the same fence
                    again = True
                    self.proposals.learn(max(ballot.granted.values()), sent)
                    continue
                if self._met_empty:
                    self._met_empty = False
                    yield from self.recovery.admit()
                if (monotonic() - began) * 1000 < request.ttl_ms:
                    return fence, ballot, answers
                break
            if len(ballot.granted) + len(ballot.behind) >= self.needed:
                again = True
                continue
            if ballot.lost or ballot.voters + len(ballot.abstain) + len(ballot.empty) < self.needed:
                break
            if ballot.voters >= self.needed and not ballot.first(request.token):
                break
            yield Pause(min(LONGEST_APART, APART * 1.5**number) * random.uniform(0.5, 1.5))
        return None, ballot, answers

    def _granted(self, answers: Answers) -> bool:
        return granted_alike(answers, self.needed)

    def release(self, name: str, token: str) -> Verb[Released]:
        """Release the lock on all instances."""
        tail = self.keys.layout.keys(name) + bulk(token)
        answers = yield Question(RELEASE, tail, enough=lambda answers: said(answers, 1, self.needed))
        return self.released(answers)

    def released(self, answers: Answers) -> Released:
        """Return the outcome of a release."""
        codes = released_codes(answers)
        if sum(code is not None for code in codes) < self.needed:
            raise too_few(answers, self.needed)
        done, silent = codes.count(1), codes.count(None)
        if done >= self.needed or (done and done + silent >= self.needed):
            return Released.RELEASED
        return Released.NOT_YOURS if codes.count(-1) >= self.needed else Released.GONE

    def extend(self, name: str, token: str, ttl: int, hold: int) -> Verb[bool]:
        """Extend the lock on all instances."""
        layout = self.keys.layout
        tail = layout.lock(name) + layout.index + bulk(token) + bulk(padded(ttl)) + bulk(hold)
        answers = yield Question(EXTEND, tail, enough=lambda answers: said(answers, 1, self.needed))
        return self.decided(answers)

    def decided(self, answers: Answers) -> bool:
        """Return the answer of a majority, yes (1) or no (0). Raises ``BackendUnavailable`` if there is none."""
        codes = codes_of(answers)
        found = verdict(sum(1 for code in codes if code), codes.count(0), self.number, self.needed)
        if found is None:
            raise too_few(answers, self.needed)
        return found

    def renew(self, batch: Sequence[Renewal]) -> Verb[list[RenewalResult]]:
        """Renew leases, and restore them on instances where they are missing (``giving_back``).

        Raises ``BackendUnavailable`` if it is not known for a lease whether a majority has it.
        """
        if not batch:
            return []
        layout = self.keys.layout
        keys = (layout.lock(item.name) for item in batch)
        arguments = chain.from_iterable((bulk(item.token), bulk(padded(item.ttl))) for item in batch)
        tail = layout.index + b"".join(keys) + b"".join(arguments)
        script = RENEW.sized(1 + 3 * len(batch), 1 + len(batch))
        answers = yield Question(script, tail)
        columns = list(
            zip(*((reply if reply is not None else [None] * len(batch)) for reply in codes_of(answers)), strict=True)
        )
        missing = missing_of(batch, columns, self.needed)
        if missing and (yield from give_back(self.keys, missing)):
            yield from self.recovery.admit()
        results = [renewed(codes, self.needed) for codes in columns]
        known = [result for result in results if result is not None]
        if len(known) < len(results):
            raise too_few(answers, self.needed)
        return known

    def get(self, name: str) -> Verb[Record | None]:
        """Return the record of the holder that has, or may have, a majority."""
        tail = self.keys.layout.lock(name) + bulk(self.keys.layout.queue + name)
        answers = yield Question(GET, tail)
        return self.found(name, answers)

    def found(self, name: str, answers: Answers) -> Record | None:
        """Return the record of a lock from those of the instances."""
        said = replies(answers)
        if len(said) < self.needed:
            raise too_few(answers, self.needed)
        there = [reply for reply in said if reply is not None]
        silent = self.number - len(said)
        tokens = [token_in(reply) for reply in there]
        if not there or max(map(tokens.count, tokens)) + silent < self.needed:
            return None
        return record_of(there, self.keys, name)

    def said(self, answers: Answers) -> list[Any]:
        """Return the replies of a majority or more. Raises ``BackendUnavailable`` if too few have answered."""
        found = replies(answers)
        if len(found) < self.needed:
            raise too_few(answers, self.needed)
        return found
