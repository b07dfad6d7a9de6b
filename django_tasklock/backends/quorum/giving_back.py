"""Giving a lock back to instances that have lost it, or were not there when it was taken.

A hold that lasts for hours loses an instance each time that one is started again; without this it would be lost with
the second of three. So what a renewal finds on a majority, and not on some instance that votes, is recorded there
again: its value is read from those that have it, and written where there is none. That takes two more trips, where
something is missing, and none where nothing is.

Why that is safe: the instances that confirmed the holder keep the lock for the lease that they have just renewed, so
nobody else can have a majority in it; what is written makes it harder for others, as any grant of that instance does,
and never replaces what is there. An instance that came back empty takes no part before it votes, like in any grant.
What comes late, after the lease or a release, is recorded on a minority of the instances, or the holder has let its
local deadline pass and asks for no renewal any more: it makes others wait, until it ends with its lease, and nobody
holds it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from django_tasklock.backends.quorum.asking import Answers, Question, Verb
from django_tasklock.backends.quorum.scripts import GIVE_BACK, VALUES, QuorumKeys, padded, vote_in
from django_tasklock.backends.redis.script import bulk
from django_tasklock.types import Renewal

MOST = 100
"""Locks that are given back in one renewal; the others are in the next."""


class Missing(NamedTuple):
    """A lock that a majority has."""

    lock: Renewal
    there: frozenset[int]
    absent: frozenset[int]


def missing_of(batch: Sequence[Renewal], columns: Sequence[Sequence[int | None]], needed: int) -> list[Missing]:
    """Return what a majority has and some instance has not, by the codes of ``renew.lua`` of each lock."""
    found = []
    for item, codes in zip(batch, columns, strict=True):
        if 0 in codes:
            there = frozenset(index for index, code in enumerate(codes) if code)
            if len(there) >= needed:
                absent = frozenset(index for index, code in enumerate(codes) if code == 0)
                found.append(Missing(item, there, absent))
    return found[:MOST]


def give_back(keys: QuorumKeys, missing: Sequence[Missing]) -> Verb[bool]:
    """Record them where they are missing; nobody minds if that fails. Whether an instance has come back empty, and
    nobody has taken note.
    """
    layout = keys.layout
    there = frozenset[int]().union(*(one.there for one in missing))
    tail = b"".join(layout.lock(one.lock.name) for one in missing)
    absent = frozenset[int]().union(*(one.absent for one in missing))
    answers = yield Question(VALUES.sized(len(missing), len(missing)), tail, again=False, only=there)
    locks, arguments = [], []
    for index, one in enumerate(missing):
        value = value_of(one.lock.token, index, answers)
        if value is not None:
            locks.append(layout.lock(one.lock.name) + keys.share(one.lock.name))
            arguments.append(bulk(padded(one.lock.ttl)) + bulk(vote_in(value)) + bulk(value))
    if not locks:
        return False
    script = GIVE_BACK.sized(2 + 5 * len(locks), 2 + 2 * len(locks))
    tail = keys.marker + layout.index + b"".join(locks + arguments)
    answers = yield Question(script, tail, again=False, only=absent)
    return any(answer.error is None and answer.reply == b"empty" for answer in answers)


def value_of(token: str, index: int, answers: Answers) -> bytes | None:
    """Return the value that most instances have of a lock, with one fence; ``None``: none has it, or its fence."""
    start = f'{{"token":"{token}"'.encode()
    values: list[bytes | None] = [answer.reply[index] for answer in answers if answer.error is None]
    ours = [value for value in values if value is not None and value.startswith(start) and vote_in(value) > 0]
    if not ours:
        return None
    [(fence, _)] = Counter(map(vote_in, ours)).most_common(1)
    return next(value for value in ours if vote_in(value) == fence)
