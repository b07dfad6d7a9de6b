"""Restoring a lock on instances that have lost it, or were down when it was acquired.

A hold of several hours loses an instance with each restart of one; without this it would be lost with the second of
three. So if a renewal finds a lock on a majority, but not on some instance that votes, the lock is restored there: its
value is read from the instances that have it, and written where there is none. That takes two more round trips if
something is missing, and none otherwise.

This is safe: the instances that confirmed the holder keep the lock for the lease that they have just renewed, so no
other contender can have a majority during it. A restored value makes it harder for others, as any grant of that
instance does, and never replaces a value. An instance that came back empty takes no part before it votes, as in any
grant. A write that comes late, after the lease or a release, reaches a minority of the instances, or the holder has let
its local deadline pass and asks for no renewal any more: then it makes others wait until it expires, and no one holds
the lock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from django_tasklock.backends.quorum.asking import Answers, Question, Verb
from django_tasklock.backends.quorum.scripts import GIVE_BACK, VALUES, QuorumKeys, fence_in, padded
from django_tasklock.backends.redis.script import bulk
from django_tasklock.types import Renewal

MOST = 100
"""The most locks that one renewal restores; the next one restores the others."""


class Missing(NamedTuple):
    """A lock that a majority has."""

    lock: Renewal
    there: frozenset[int]
    absent: frozenset[int]


def missing_of(batch: Sequence[Renewal], columns: Sequence[Sequence[int | None]], needed: int) -> list[Missing]:
    """Return the locks that a majority has and some instance has not, from the codes of ``renew.lua`` of each lock."""
    found = []
    for item, codes in zip(batch, columns, strict=True):
        if 0 in codes:
            there = frozenset(index for index, code in enumerate(codes) if code)
            if len(there) >= needed:
                absent = frozenset(index for index, code in enumerate(codes) if code == 0)
                found.append(Missing(item, there, absent))
    return found[:MOST]


def give_back(keys: QuorumKeys, missing: Sequence[Missing]) -> Verb[bool]:
    """Restore the locks where they are missing; a failure is ignored, because the next renewal tries again.

    Return whether an instance has come back empty and is not admitted yet.
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
            arguments.append(bulk(padded(one.lock.ttl)) + bulk(fence_in(value)) + bulk(value))
    if not locks:
        return False
    script = GIVE_BACK.sized(2 + 5 * len(locks), 2 + 2 * len(locks))
    tail = keys.marker + layout.index + b"".join(locks + arguments)
    answers = yield Question(script, tail, again=False, only=absent)
    return any(answer.error is None and answer.reply == b"empty" for answer in answers)


def value_of(token: str, index: int, answers: Answers) -> bytes | None:
    """Return the value of a lock that most instances have, with the same fence; ``None``: no instance has it."""
    start = f'{{"token":"{token}"'.encode()
    values: list[bytes | None] = [answer.reply[index] for answer in answers if answer.error is None]
    ours = [value for value in values if value is not None and value.startswith(start) and fence_in(value) > 0]
    if not ours:
        return None
    [(fence, _)] = Counter(map(fence_in, ours)).most_common(1)
    return next(value for value in ours if fence_in(value) == fence)
