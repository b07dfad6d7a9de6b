"""Sequence numbers, lines and flags on all instances, which order Celery's messages.

The row or the sweep finds again what they may lose, so a majority of the instances is enough: a sequence number is the
greatest that one instance has drawn, proposed to all; a flag is set if one instance has it.
"""

from __future__ import annotations

from typing import Any

from django_tasklock.backends.quorum.asking import Question, Verb
from django_tasklock.backends.quorum.scripts import QuorumKeys
from django_tasklock.backends.quorum.verbs import Verbs
from django_tasklock.backends.redis import FLAG, LINE, NEWEST, RELEASE, RELEASE_NOTED, noted_in
from django_tasklock.backends.redis.keys import KEPT, SHOWN
from django_tasklock.backends.redis.script import bulk, load
from django_tasklock.types import Released

TICKET = load("quorum_ticket", 2, 3)


class Lines:
    """The verbs for the order of messages, and for flags, on all instances."""

    def __init__(self, verbs: Verbs) -> None:
        self._verbs = verbs
        self._keys: QuorumKeys = verbs.keys

    def ticket(self, name: str, member: str) -> Verb[int]:
        """Draw a sequence number, the same on all instances that answer."""
        layout, proposals = self._keys.layout, self._verbs.proposals
        while True:
            sent, proposal = proposals.now(), proposals.next()
            tail = layout.ticket + layout.line(name) + bulk(member) + bulk(KEPT) + bulk(proposal)
            drawn = self._verbs.said((yield Question(TICKET, tail)))
            greatest = max(map(int, drawn))
            if greatest == proposal:
                return greatest
            proposals.learn(greatest, sent)

    def expects(self, name: str, ticket: int, forget: bool) -> Verb[int]:
        """Return how many messages have a lower number, in the longest line."""
        tail = self._keys.layout.line(name) + bulk("") + bulk(ticket) + bulk("forget" if forget else "")
        return max(map(int, (yield from self._all(LINE, tail))))

    def arrived(self, name: str, member: str) -> Verb[bool]:
        """Leave the line. Return whether other messages are in it on any instance."""
        tail = self._keys.layout.line(name) + bulk(member) + bulk("+inf") + bulk("")
        return any((yield from self._all(LINE, tail)))

    def newest(self, name: str, ticket: int) -> Verb[bool]:
        """Tell whether no instance has seen a greater number."""
        return all((yield from self._all(NEWEST, self._keys.layout.newest(name) + bulk(ticket) + bulk(SHOWN))))

    def flag(self, name: str) -> Verb[bool]:
        """Set a flag on all instances. Return whether a majority reports that the lock is held."""
        layout = self._keys.layout
        said = yield from self._all(FLAG, layout.flag(name) + layout.lock(name) + bulk(KEPT))
        return sum(map(bool, said)) >= self._verbs.needed

    def flagged(self, name: str) -> Verb[bool]:
        """Clear the flag on all instances. Return whether one had it."""
        layout = self._keys.layout
        return any((yield from self._all(FLAG, layout.flag(name) + layout.lock(name) + bulk(0))))

    def release_noted(
        self, name: str, token: str, notes: tuple[str, ...]
    ) -> Verb[tuple[Released, frozenset[str] | None]]:
        """Release the lock and clear flags. Return those that one instance had."""
        layout = self._keys.layout
        keys = layout.keys(name) + b"".join(map(layout.flag, notes))
        answers = yield Question(RELEASE_NOTED[RELEASE, len(notes)], keys + bulk(token))
        released = self._verbs.released(answers)
        if not released:
            return released, None
        if any(answer.doubt or answer.error is not None for answer in answers):
            return released, frozenset(notes)  # assume that all were set
        return released, frozenset[str]().union(*(noted_in(answer.reply, notes) or () for answer in answers))

    def _all(self, script: Any, tail: bytes) -> Verb[list[Any]]:
        return self._verbs.said((yield Question(script, tail)))
