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

from django_tasklock.backends.quorum.asking import Answers, Instances
from django_tasklock.backends.quorum.scripts import GET, GIVE_BACK, QuorumKeys, fence_in, padded
from django_tasklock.types import Renewal


class Missing(NamedTuple):
    """A lock that a majority has."""

    lock: Renewal
    there: frozenset[int]
    absent: frozenset[int]


def missing_of(batch: Sequence[Renewal], columns: Sequence[Sequence[int | None]], needed: int) -> list[Missing]:
    """Return the locks that a majority has and some instance has not, from the codes of ``renew.lua`` of each lock."""
    found = []
    for item, codes in zip(batch, columns, strict=True):
        there = frozenset(index for index, code in enumerate(codes) if code)
        absent = frozenset(index for index, code in enumerate(codes) if code == 0)
        if absent and len(there) >= needed:
            found.append(Missing(item, there, absent))
    return found


def give_back(instances: Instances, keys: QuorumKeys, missing: Sequence[Missing]) -> None:
    """Restore the locks where they are missing; a failure is ignored, because the next renewal tries again."""
    there = frozenset[int]().union(*(one.there for one in missing))
    absent = frozenset[int]().union(*(one.absent for one in missing))
    answers = instances.ask(GET, [keys.lock(one.lock.name)[0] for one in missing], only=there)
    places: list[str] = []
    values: list[int | bytes] = []
    for index, one in enumerate(missing):
        value = value_of(one.lock.token, index, answers)
        if value is not None:
            places += keys.lock(one.lock.name)[0], keys.share(one.lock.name)
            values += padded(one.lock.ttl), fence_in(value), value
    if places:
        instances.ask(GIVE_BACK, [keys.marker, keys.index, *places], values, only=absent, again=False)


def value_of(token: str, index: int, answers: Answers) -> bytes | None:
    """Return the value of a lock that most instances have, with the same fence; ``None``: no instance has it."""
    start = f'{{"token":"{token}"'.encode()
    values: list[bytes | None] = [answer.reply[2 * index + 2] for answer in answers if answer.error is None]
    ours = [value for value in values if value is not None and value.startswith(start) and fence_in(value) > 0]
    if not ours:
        return None
    [(fence, _)] = Counter(map(fence_in, ours)).most_common(1)
    return next(value for value in ours if fence_in(value) == fence)
