"""Sequence numbers, orders and flags on all instances, for Celery's messages.

The row or the sweep finds again what they may lose, so a majority of the instances is enough: a sequence number is the
greatest that one instance has drawn, proposed to all; a flag is set if one instance has it.
"""

from __future__ import annotations

from typing import Any

from django_tasklock.backends.quorum.asking import Question, Verb
from django_tasklock.backends.quorum.scripts import QuorumKeys
from django_tasklock.backends.quorum.verbs import Verbs
from django_tasklock.backends.redis import FLAG, NEWEST, ORDER, RELEASE_AND_CLEAR, flags_in
from django_tasklock.backends.redis.keys import KEPT, SHOWN
from django_tasklock.backends.redis.script import bulk, load
from django_tasklock.types import Released

NEXT_NUMBER = load("quorum_next_number", 2, 3)


class Order:
    """The verbs for the order of messages, and for flags, on all instances."""

    def __init__(self, verbs: Verbs) -> None:
        self._verbs = verbs
        self._keys: QuorumKeys = verbs.keys

    def next_number(self, name: str, member: str) -> Verb[int]:
        """Draw a sequence number, the same on all instances that answer."""
        layout, proposals = self._keys.layout, self._verbs.proposals
        while True:
            sent, proposal = proposals.now(), proposals.next()
            tail = layout.ticket + layout.order(name) + bulk(member) + bulk(KEPT) + bulk(proposal)
            drawn = self._verbs.said((yield Question(NEXT_NUMBER, tail)))
            greatest = max(map(int, drawn))
            if greatest == proposal:
                return greatest
            proposals.learn(greatest, sent)

    def count_before(self, name: str, number: int, forget: bool) -> Verb[int]:
        """Return how many messages have a lower number, where that is most."""
        tail = self._keys.layout.order(name) + bulk("") + bulk(number) + bulk("forget" if forget else "")
        return max(map(int, (yield from self._all(ORDER, tail))))

    def leave_order(self, name: str, member: str) -> Verb[bool]:
        """Leave the order. Return whether other messages are in it on any instance."""
        tail = self._keys.layout.order(name) + bulk(member) + bulk("+inf") + bulk("")
        return any((yield from self._all(ORDER, tail)))

    def record_newest(self, name: str, number: int) -> Verb[bool]:
        """Tell whether no instance has seen a greater number."""
        return all((yield from self._all(NEWEST, self._keys.layout.newest(name) + bulk(number) + bulk(SHOWN))))

    def set_flag(self, name: str) -> Verb[bool]:
        """Set a flag on all instances. Return whether a majority reports that the lock is held."""
        layout = self._keys.layout
        said = yield from self._all(FLAG, layout.flag(name) + layout.lock(name) + bulk(KEPT))
        return sum(map(bool, said)) >= self._verbs.needed

    def clear_flag(self, name: str) -> Verb[bool]:
        """Clear the flag on all instances. Return whether one had it."""
        layout = self._keys.layout
        return any((yield from self._all(FLAG, layout.flag(name) + layout.lock(name) + bulk(0))))

    def release_and_clear(
        self, name: str, token: str, names: tuple[str, ...]
    ) -> Verb[tuple[Released, frozenset[str] | None]]:
        """Release the lock and clear flags. Return those that one instance had."""
        layout = self._keys.layout
        keys = layout.keys(name) + b"".join(map(layout.flag, names))
        answers = yield Question(RELEASE_AND_CLEAR[len(names)], keys + bulk(token))
        released = self._verbs.released(answers)
        if not released:
            return released, None
        if any(answer.doubt or answer.error is not None for answer in answers):
            return released, frozenset(names)  # assume that all were set
        return released, frozenset[str]().union(*(flags_in(answer.reply, names) or () for answer in answers))

    def _all(self, script: Any, tail: bytes) -> Verb[list[Any]]:
        return self._verbs.said((yield Question(script, tail)))
