"""Evaluation of the answers of the instances. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from django_tasklock.backends.quorum.asking import Answer, Answers, replies
from django_tasklock.backends.quorum.scripts import QuorumKeys
from django_tasklock.types import Record, Released, RenewalResult


class Ballot(NamedTuple):
    """The votes of the instances on an acquisition."""

    granted: list[int]
    """The fence that each instance has recorded that granted the lock."""
    busy: list[list[Any]]
    """The replies of instances on which another holder has the lock."""
    behind: list[int]
    """The fence that the next proposal must exceed, of each instance that refused it."""
    abstain: list[int]
    """The milliseconds until an instance votes, of each that does not vote yet."""
    answered: int
    """How many have answered, including those that came back empty and have not been admitted yet."""
    needed: int

    @property
    def voters(self) -> int:
        """The number of instances that voted."""
        return len(self.granted) + len(self.busy) + len(self.behind)

    @property
    def fence(self) -> int | None:
        """The fence that a majority has recorded; ``None`` if none has the same one."""
        if not self.granted:
            return None
        fence, times = Counter(self.granted).most_common(1)[0]
        return fence if times >= self.needed else None

    @property
    def holders(self) -> Counter[bytes]:
        """The number of instances on which each other token holds the lock; ``b""``: another application's value."""
        return Counter(map(token_in, self.busy))

    @property
    def lost(self) -> bool:
        """Whether another holder has a majority."""
        return any(times >= self.needed for times in self.holders.values())

    def first(self, token: str) -> bool:
        """Return whether ``token`` goes on while votes are split; its rivals see the same votes and give theirs back.

        Any order works if all contenders agree on it; tokens are random.
        """
        mine = token.encode()
        return bool(self.granted or self.behind) and all(mine < other for other in self.holders if other)


def ballot_of(answers: Answers, needed: int) -> Ballot:
    """Count the answers to ``ACQUIRE``."""
    found = replies(answers)
    ballot = Ballot([], [], [], [], len(found), needed)
    for reply in found:
        if type(reply) is int:
            ballot.granted.append(reply)
        elif reply == b"empty":
            continue
        elif reply[0] == b"abstains":
            ballot.abstain.append(int(reply[1]))
        elif reply[0] == b"behind":
            ballot.behind.append(int(reply[1]))
        else:
            ballot.busy.append(reply)
    return ballot


def token_in(reply: list[Any]) -> bytes:
    """Return the token in the reply of a busy instance; ``b""`` if the value is another application's."""
    value: bytes = reply[1] or b""
    return value[10:].split(b'"', 1)[0] if value.startswith(b'{"token":"') else b""


def record_of(found: Sequence[list[Any]], keys: QuorumKeys, name: str) -> Record | None:
    """Return one record of what some instances say, ``{ms left, value, now}`` each."""
    return most_of([keys.record(name, reply) for reply in found]) if found else None


def most_of(records: Sequence[Record]) -> Record:
    """Return one of some records of a lock: of the token that most of them have, the latest, with the time left where
    it is kept longest. Clocks differ, so the latest need not be the one with the most time left.
    """
    times = Counter(record.token for record in records)
    best = max(records, key=lambda found: (times[found.token], found.fence, found.at, found.until))
    same = [found for found in records if found.token == best.token]
    lefts = [found.ttl for found in same]
    longest = None if None in lefts else max(left for left in lefts if left is not None)
    return replace(best, ttl=longest, instances=len(same), asked=max(found.asked for found in same))


def renewed(codes: Sequence[int | None], needed: int) -> RenewalResult | None:
    """Return the result for one lease from the codes of ``renew.lua`` on each instance (``None``: no answer).

    ``None`` if it is unknown whether a majority has the lease.
    """
    if sum(1 for code in codes if code) >= needed:
        return RenewalResult.ASKED if 2 in codes else RenewalResult.RENEWED
    return RenewalResult.LOST if codes.count(0) > len(codes) - needed else None


def codes_of(answers: Answers) -> list[Any]:
    """Return the reply of each instance; ``None`` if it has not answered."""
    return [answer.reply if answer.error is None else None for answer in answers]


def released(answers: Answers, needed: int) -> Released | None:
    """Return the outcome of a release, from the replies of ``quorum_release.lua``; ``None``: too few have answered."""

    def code(answer: Answer) -> int | None:
        if answer.error is not None:
            return None
        # An earlier attempt that may have released the lock counts as one.
        return 1 if answer.doubt or isinstance(answer.reply, list) else int(answer.reply)

    codes = [code(answer) for answer in answers]
    done, silent = codes.count(1), codes.count(None)
    if len(codes) - silent < needed:
        return None
    if done and done + silent >= needed:
        return Released.RELEASED
    return Released.NOT_YOURS if codes.count(-1) >= needed else Released.GONE
