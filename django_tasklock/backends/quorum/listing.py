"""Listing, counting and sweeping the union of the locks of all instances.

A page of the union is merged from the beginning of each list up to the end of the page, so its cost grows with its
offset; the answers are read in parts. A lock of a minority is listed, too: it is being acquired, was released while an
instance did not answer, or has lost its majority. No one holds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from django_tasklock.backends.contract.queries import Counts, Page, Pruned, Query
from django_tasklock.backends.quorum.asking import Question, Verb, replies, too_few
from django_tasklock.backends.quorum.ballot import most_of, record_of
from django_tasklock.backends.quorum.scripts import as_leased
from django_tasklock.backends.quorum.verbs import Verbs
from django_tasklock.backends.redis import ASK_RELEASE, COUNTS, PRUNE, REMOVE, SET_EXPIRY
from django_tasklock.backends.redis.keys import record
from django_tasklock.backends.redis.listing import ORDERED, page_of
from django_tasklock.backends.redis.script import bulk
from django_tasklock.conf import expiring
from django_tasklock.types import Record

PART = ORDERED
"""The most locks that one script returns: Redis serves no other client meanwhile."""

MARGIN = 200
"""The locks read beyond a page: the order of the instances may differ for locks of the same moment."""


class Found(NamedTuple):
    """A lock in the list of one instance. ``ends``: when it expires there, in milliseconds."""

    ends: float
    record: Record


class Listing:
    """The verbs for operators."""

    def __init__(self, verbs: Verbs) -> None:
        self._verbs = verbs
        self._layout = verbs.keys.layout

    def page(self, query: Query) -> Verb[Page]:
        """Return a page of the union, in order. An offset counts what the query finds."""
        wanted = query.offset + max(0, query.limit) + MARGIN
        parts: dict[int, list[Found]] = {}
        further: dict[int, int] = {}
        total = 0
        answers = yield self._part(query, 0, wanted)
        self._verbs.said(answers)
        while True:
            for index, answer in enumerate(answers):
                if answer.error is None:
                    total = max(total, answer.reply[1])
                    parts.setdefault(index, []).extend(self._records(query, answer.reply))
                    further[index] = answer.reply[2]
            behind = [index for index, next_ in further.items() if next_ >= 0 and len(parts[index]) < wanted]
            if not behind:
                break
            index = behind[0]
            answers = yield self._part(query, further.pop(index), wanted - len(parts[index]), frozenset((index,)))
        merged = self._merged(query, list(parts.values()))
        ends = query.offset + max(0, query.limit)
        if not any(next_ >= 0 for next_ in further.values()) and not query.searches:
            total = len(merged)
        return Page(merged[query.offset : ends], total, ends if len(merged) > ends and query.limit > 0 else None)

    def _part(self, query: Query, offset: int, limit: int, only: frozenset[int] | None = None) -> Question:
        script, tail = page_of(self._layout, query._replace(offset=offset, limit=min(PART, limit)))
        return Question(script, tail, only=only)

    def _records(self, query: Query, reply: list[Any]) -> list[Found]:
        now: int = reply[0]
        found = []
        for left, waiting, key, value in _rows(reply):
            name = key.decode(errors="backslashreplace").removeprefix(self._layout.prefix)
            shown = as_leased(record(name, value or b"", now, left, waiting))
            lapsed = query.which == "orphaned"
            ends = float("inf") if left == -1 and not lapsed else float(now + left)
            found.append(Found(ends, replace(shown, ttl=left) if lapsed else shown))
        return found

    def _merged(self, query: Query, parts: list[list[Found]]) -> list[Record]:
        found: dict[str, list[Found]] = {}
        for part in parts:
            for one in {one.record.name: one for one in part}.values():
                found.setdefault(one.record.name, []).append(one)
        if query.which == "orphaned":  # a lapsed lock of a minority had no holder, and may have one on the others
            found = {name: those for name, those in found.items() if len(those) >= self._verbs.needed}
        merged = [
            Found(max(one.ends for one in those), most_of([one.record for one in those])) for those in found.values()
        ]
        merged.sort(key=_order(query), reverse=query.descending)
        return [one.record for one in merged]

    def counts(self) -> Verb[Counts]:
        """Return the counts, each from the instance that has the most."""
        said = self._verbs.said((yield Question(COUNTS, self._layout.index + bulk(expiring()))))
        return Counts(*map(max, zip(*said, strict=True)))

    def prune(self, limit: int, lapsed_before: int | None, prefix: str, offset: int) -> Verb[Pruned]:
        """Remove lapsed locks on each instance. Return the number that a majority has removed at least."""
        before = "" if lapsed_before is None else lapsed_before
        arguments = bulk(limit) + bulk(before) + bulk(self._layout.prefix + prefix) + bulk(offset)
        said = self._verbs.said((yield Question(PRUNE, self._layout.index + arguments)))
        return Pruned(*(sorted(column)[-self._verbs.needed] for column in zip(*said, strict=True)))

    def ask_release(self, name: str, token: str) -> Verb[bool]:
        """Record on each instance that the release is requested."""
        said = self._verbs.said((yield Question(ASK_RELEASE, self._layout.lock(name) + bulk(token))))
        return sum(map(bool, said)) >= self._verbs.needed

    def set_expiry(self, name: str, token: str, ttl: int) -> Verb[bool]:
        """Set an expiry on each instance where the lock has none."""
        tail = self._layout.lock(name) + self._layout.index + bulk(token) + bulk(ttl)
        return any(self._verbs.said((yield Question(SET_EXPIRY, tail))))

    def remove(self, name: str, token: str | None) -> Verb[Record | None]:
        """Remove the lock from all instances. Return what was removed."""
        tail = self._layout.keys(name) + bulk(token or "") + bulk("any" if token is None else "")
        answers = yield Question(REMOVE, tail, again=False)
        said = replies(answers)
        if len(said) < self._verbs.needed:
            raise too_few(answers, self._verbs.needed)
        return record_of([reply for reply in said if reply is not None], self._verbs.keys, name)


def _rows(reply: list[Any]) -> Iterator[tuple[int, int, bytes, bytes | None]]:
    """Return the remaining ms, the number of waiters, key and value of each lock that ``page.lua`` has found."""
    now, _, _, lefts, waits, keys, values = reply
    if keys and not lefts:  # a long list, from the index alone
        for flat, part in zip(keys, values, strict=True):
            for key, score, value in zip(flat[::2], flat[1::2], part, strict=True):
                yield int(score) - now, 0, key, value
        return
    yield from zip(map(int, lefts.split()), map(int, waits.split()), keys, values, strict=True)


def _order(query: Query) -> Callable[[Found], tuple[float, str]]:
    if query.which == "live" and query.order == "age":
        return lambda one: (-float(one.record.fence or one.record.at * 1000), one.record.name)
    if query.which == "live" and query.order == "left":
        return lambda one: (float(one.record.until), one.record.name)
    return lambda one: (one.ends, one.record.name)
