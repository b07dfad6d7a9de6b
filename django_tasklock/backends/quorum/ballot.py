"""What the answers of the instances amount to. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from django_tasklock.backends.quorum.asking import Answer, Answers
from django_tasklock.backends.quorum.scripts import QuorumKeys
from django_tasklock.types import Busy, Record, RenewalResult


class Ballot(NamedTuple):
    """How the instances voted on an acquisition, each by its number."""

    granted: dict[int, int]
    """The fence that each of those has recorded that granted it."""
    busy: dict[int, list[Any]]
    """What those said that have somebody else's lock."""
    behind: dict[int, int]
    """Those that would have granted it with a greater fence: that it must exceed."""
    empty: frozenset[int]
    """Those that have come back empty, and of which nobody has taken note."""
    abstain: dict[int, int]
    """Those that do not vote yet: for how many ms."""
    silent: frozenset[int]
    """Those of which nothing is known; some may have granted it."""
    needed: int

    @property
    def voters(self) -> int:
        """How many took part."""
        return len(self.granted) + len(self.busy) + len(self.behind)

    @property
    def won(self) -> bool:
        """Whether a majority granted it."""
        return len(self.granted) >= self.needed

    @property
    def fence(self) -> int | None:
        """The fence that a majority has recorded alike."""
        if not self.granted:
            return None
        fence, times = Counter(self.granted.values()).most_common(1)[0]
        return fence if times >= self.needed else None

    @property
    def holders(self) -> Counter[bytes]:
        """The others that were granted it, by their tokens, and on how many instances; ``b""`` is nobody of ours."""
        return Counter(token_in(reply) for reply in self.busy.values())

    @property
    def lost(self) -> bool:
        """Whether another one has a majority."""
        return any(times >= self.needed for times in self.holders.values())

    def first(self, token: str) -> bool:
        """Tell whether ``token`` goes on while votes are split: its rivals, who see the same, give theirs back.

        Any order does on which all agree; tokens are random.
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
    """Return the token in what a busy instance said; ``b""`` in somebody else's value."""
    value: bytes = reply[1] or b""
    return value[10:].split(b'"', 1)[0] if value.startswith(b'{"token":"') else b""


def busy_of(ballot: Ballot, keys: QuorumKeys, name: str) -> Busy:
    """Return who has the lock, by most of the instances, and the time until a majority may be free."""
    if not ballot.busy:
        return Busy(None, 0)
    record = record_of(list(ballot.busy.values()), keys, name)
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
    it is kept longest. Which is the latest is told by clocks that differ: it need not be the one that keeps it.
    """
    times = Counter(record.token for record in records)
    best = max(records, key=lambda found: (times[found.token], found.fence, found.at, found.until))
    same = [found for found in records if found.token == best.token]
    lefts = [found.ttl for found in same]
    longest = None if None in lefts else max(left for left in lefts if left is not None)
    waiting, asked = max(found.waiting for found in records), max(found.asked for found in same)
    return replace(best, ttl=longest, instances=len(same), waiting=waiting, asked=asked)


def granted_alike(answers: Answers, needed: int) -> bool:
    """Tell whether a majority has granted a lock with one fence, without counting further."""
    found: list[int] = [reply for reply, error, _, _ in answers if error is None and type(reply) is int]
    return len(found) >= needed and max(map(found.count, found)) >= needed


def said(answers: Answers, code: object, needed: int) -> bool:
    """Tell whether a majority has said it."""
    return sum(1 for answer in answers if answer.error is None and answer.reply == code) >= needed


def verdict(yes: int, no: int, total: int, needed: int) -> bool | None:
    """Return what a majority says; ``None`` if the silent ones might decide either way."""
    if yes >= needed:
        return True
    return False if no > total - needed else None


def renewed(codes: Sequence[int | None], needed: int) -> RenewalResult | None:
    """Return what became of one lease, by the codes of ``renew.lua`` on each instance (``None``: it is silent).

    ``None`` if that is not known: neither a majority has it, nor is one excluded.
    """
    yes = sum(1 for code in codes if code)
    found = verdict(yes, sum(1 for code in codes if code == 0), len(codes), needed)
    if found is None:
        return None
    if not found:
        return RenewalResult.LOST
    return RenewalResult.ASKED if 2 in codes else RenewalResult.RENEWED


def codes_of(answers: Answers) -> list[Any]:
    """Return what each said; ``None``: nothing. Whoever may have done it before is taken to have done it."""
    return [answer.reply if answer.error is None else None for answer in answers]


def released_codes(answers: Answers) -> list[int | None]:
    """Return the codes of ``release.lua``: what an earlier sending, whose answer was lost, may have released, was."""

    def code(answer: Answer) -> int | None:
        if answer.error is not None:
            return None
        reply = answer.reply[0] if isinstance(answer.reply, list) else answer.reply
        return 1 if answer.doubt else int(reply)

    return [code(answer) for answer in answers]
