"""Evaluation of the answers of the instances. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from django_tasklock.backends.quorum.asking import Answer, Answers
from django_tasklock.backends.quorum.scripts import QuorumKeys
from django_tasklock.types import Busy, Record, RenewalResult


class Ballot(NamedTuple):
    """The votes of the instances on an acquisition, by the index of the instance."""

    granted: dict[int, int]
    """Instances that granted the lock, with the fence that each has recorded."""
    busy: dict[int, list[Any]]
    """The replies of instances on which another holder has the lock."""
    behind: dict[int, int]
    """Instances that refused the fence, with the fence that the next proposal must exceed."""
    empty: frozenset[int]
    """Instances that came back empty and have not been admitted yet."""
    abstain: dict[int, int]
    """Instances that do not vote yet, with the milliseconds until they do."""
    silent: frozenset[int]
    """Instances without an answer; some may have granted the lock."""
    needed: int

    @property
    def voters(self) -> int:
        """The number of instances that voted."""
        return len(self.granted) + len(self.busy) + len(self.behind)

    @property
    def won(self) -> bool:
        """Whether a majority granted the lock."""
        return len(self.granted) >= self.needed

    @property
    def fence(self) -> int | None:
        """The fence that a majority has recorded; ``None`` if none has the same one."""
        if not self.granted:
            return None
        fence, times = Counter(self.granted.values()).most_common(1)[0]
        return fence if times >= self.needed else None

    @property
    def holders(self) -> Counter[bytes]:
        """The number of instances on which each other token holds the lock; ``b""``: another application's value."""
        return Counter(token_in(reply) for reply in self.busy.values())

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
    granted: dict[int, int] = {}
    busy: dict[int, list[Any]] = {}
    behind: dict[int, int] = {}
    empty, abstain, silent = set(), {}, set()
    for index, (reply, error, _, _) in enumerate(answers):
        if error is not None:
            silent.add(index)
        elif type(reply) is int:
            granted[index] = reply
        elif reply == b"empty":
            empty.add(index)
        elif reply[0] == b"abstains":
            abstain[index] = int(reply[1])
        elif reply[0] == b"behind":
            behind[index] = int(reply[1])
        else:
            busy[index] = reply
    return Ballot(granted, busy, behind, frozenset(empty), abstain, frozenset(silent), needed)


def token_in(reply: list[Any]) -> bytes:
    """Return the token in the reply of a busy instance; ``b""`` if the value is another application's."""
    value: bytes = reply[1] or b""
    return value[10:].split(b'"', 1)[0] if value.startswith(b'{"token":"') else b""


def busy_of(ballot: Ballot, keys: QuorumKeys, name: str) -> Busy:
    """Return the holder on most of the busy instances, and the longest time for which one of those keeps the lock."""
    if not ballot.busy:
        return Busy(None, 0)
    record = record_of([reply[:3] for reply in ballot.busy.values()], keys, name)
    return Busy(record, None if record is None else record.ttl)


def record_of(found: Sequence[list[Any]], keys: QuorumKeys, name: str) -> Record | None:
    """Return one record of what some instances say, ``{ms left, value, now, waiting}`` each: that of the token that
    most of them have, as the one says that keeps it longest.
    """
    if not found:
        return None
    waiting = max((reply[3] for reply in found if len(reply) > 3), default=0)
    return replace(most_of([keys.record(name, reply) for reply in found]), waiting=waiting)


def most_of(records: Sequence[Record]) -> Record:
    """Return one of some records of a lock: of the token that most of them have, the latest, with the time left where
    it is kept longest. Clocks differ, so the latest need not be the one with the most time left.
    """
    times = Counter(record.token for record in records)
    best = max(records, key=lambda found: (times[found.token], found.fence, found.at, found.until))
    same = [found for found in records if found.token == best.token]
    lefts = [found.ttl for found in same]
    longest = None if None in lefts else max(left for left in lefts if left is not None)
    waiting, asked = max(found.waiting for found in records), max(found.asked for found in same)
    return replace(best, ttl=longest, instances=len(same), waiting=waiting, asked=asked)


def granted_alike(answers: Answers, needed: int) -> bool:
    """Return whether a majority has granted a lock with the same fence, without a whole ballot."""
    found: list[int] = [reply for reply, error, _, _ in answers if error is None and type(reply) is int]
    return len(found) >= needed and max(map(found.count, found)) >= needed


def said(answers: Answers, code: object, needed: int) -> bool:
    """Return whether a majority has replied ``code``."""
    return sum(1 for answer in answers if answer.error is None and answer.reply == code) >= needed


def verdict(yes: int, no: int, total: int, needed: int) -> bool | None:
    """Return the decision of a majority; ``None`` if the instances without an answer could decide either way."""
    if yes >= needed:
        return True
    return False if no > total - needed else None


def renewed(codes: Sequence[int | None], needed: int) -> RenewalResult | None:
    """Return the result for one lease from the codes of ``renew.lua`` on each instance (``None``: no answer).

    ``None`` if it is unknown whether a majority has the lease.
    """
    yes = sum(1 for code in codes if code)
    found = verdict(yes, sum(1 for code in codes if code == 0), len(codes), needed)
    if found is None:
        return None
    if not found:
        return RenewalResult.LOST
    return RenewalResult.ASKED if 2 in codes else RenewalResult.RENEWED


def codes_of(answers: Answers) -> list[Any]:
    """Return the reply of each instance; ``None`` if it has not answered."""
    return [answer.reply if answer.error is None else None for answer in answers]


def released_codes(answers: Answers) -> list[int | None]:
    """Return the codes of ``release.lua``. An earlier attempt that may have released the lock counts as one."""

    def code(answer: Answer) -> int | None:
        if answer.error is not None:
            return None
        reply = answer.reply[0] if isinstance(answer.reply, list) else answer.reply
        return 1 if answer.doubt else int(reply)

    return [code(answer) for answer in answers]
