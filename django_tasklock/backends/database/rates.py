"""Rate limits as rows of one table, one for each limiter: its ``State`` as JSON.

A row is changed only by an UPDATE whose condition has the version that was read, so only one of the processes that
read the same version writes it, at every isolation level; the others read it again. This is slower than Redis: two
queries for each operation, more under contention. A caller that loses the race may be overtaken by a later one.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from django.db.models import Max, QuerySet

from django_tasklock.backends.contract.rates import Booked, Penalty, Pushback, RateStore, Refused, Terms, Usage
from django_tasklock.backends.database.names import in_ascii, key_of, name_of
from django_tasklock.backends.database.purging import Purging
from django_tasklock.backends.database.rows import insert
from django_tasklock.backends.ledger import verbs as ledger_verbs
from django_tasklock.backends.ledger.book import RateBook
from django_tasklock.backends.ledger.state import State
from django_tasklock.db.clock import AggregateNow, Now
from django_tasklock.db.session import Session
from django_tasklock.exceptions import BackendUnavailable
from django_tasklock.models import RateRow

T = TypeVar("T")
MAX_RACE = 10.0  # seconds for which an operation may lose the race for a row


class DatabaseRates(RateStore):
    """Rate limits by the database's clock, in milliseconds. Operations that write refuse to run inside ``atomic()``."""

    where = "django"

    def __init__(self) -> None:
        self._session = Session(RateRow, "rate limit")
        self.purging = Purging(self._session, self.purge)

    def run(self, terms: Terms, verb: Callable[[RateBook, bool], T], write: bool = True) -> T:
        """Run ``verb(book, again)`` on the limiter's book, store the changed book, and return the result.

        ``again``: an earlier attempt may have been executed.
        """

        def attempt(alias: str, again: bool) -> T:
            key, ends = key_of(terms.name), time.monotonic() + MAX_RACE
            while True:
                found = rows_of(alias).filter(key=key).annotate(now=Now()).values_list("state", "version", "now")
                text, version, now = next(iter(found), ("", 0, 0))
                if not now:
                    now = rows_of(alias).filter(key=key).aggregate(now=AggregateNow(), none=Max("version"))["now"]
                book = RateBook(State(text), terms, now * 1000)
                answer = verb(book, again)
                if not write:
                    return answer
                book.state.terms = terms.text()
                written = {"state": book.state.to_json(), "expires_at": book.expires // 1000, "used_at": now}
                if not version:
                    self.purging.count_row()
                    done = insert(alias, RateRow(key=key, name=in_ascii(terms.name), version=1, **written))
                else:
                    same = rows_of(alias).filter(key=key, version=version)
                    done = same.update(version=version + 1, **written) > 0
                if done:
                    return answer
                if time.monotonic() > ends:
                    text = f"the rate limit {terms.name!r} is changed too often to be written"
                    raise BackendUnavailable(text, name=terms.name, doubt=False)
                time.sleep(random.uniform(0, 0.005))

        answer = self._session.run(attempt, name=terms.name, write=write)
        if write:
            self.purging.purge_if_due()
        return answer

    def reserve(
        self, terms: Terms, cost: int, max_wait: int, spaced: bool = False, will_resume: bool = False
    ) -> Booked | Refused:
        return self.run(terms, lambda book, again: ledger_verbs.reserve(book, cost, max_wait, spaced, will_resume))

    def resume(
        self, terms: Terms, cost: int, slot: int, edition: int, max_wait: int, spaced: bool = False, leeway: int = 0
    ) -> Booked | Refused:
        def verb(book: RateBook, again: bool) -> Booked | Refused:
            if again:  # the old slot may belong to another caller by now
                return ledger_verbs.reserve(book, cost, max_wait, spaced, leeway=leeway)
            return ledger_verbs.resume(book, cost, slot, edition, max_wait, spaced, leeway)

        return self.run(terms, verb)

    def exchange(
        self, terms: Terms, cost: int, slots: Sequence[int], edition: int, max_wait: int, leeway: int = 0
    ) -> list[Booked | Refused]:
        def verb(book: RateBook, again: bool) -> list[Booked | Refused]:
            if again:
                return [ledger_verbs.reserve(book, cost, max_wait)]
            return ledger_verbs.exchange(book, cost, slots, edition, max_wait, leeway)

        return self.run(terms, verb)

    def cancel(self, terms: Terms, cost: int, slot: int, edition: int) -> bool:
        return self.run(terms, lambda book, again: not again and ledger_verbs.cancel(book, cost, slot, edition))

    def settle(self, terms: Terms, cost: int, slot: int, edition: int, actual: int) -> bool:
        return self.run(terms, lambda book, again: not again and ledger_verbs.settle(book, cost, slot, edition, actual))

    def penalize(self, terms: Terms, pushback: Pushback, max_length: int) -> Penalty:
        return self.run(terms, lambda book, again: ledger_verbs.penalize(book, pushback, max_length))

    def pause(self, terms: Terms, length: int) -> None:
        self.run(terms, lambda book, again: ledger_verbs.pause(book, length))

    def adjust(self, terms: Terms, share: int) -> None:
        self.run(terms, lambda book, again: ledger_verbs.adjust(book, share))

    def usage(self, terms: Terms) -> Usage:
        return self.run(terms, lambda book, again: ledger_verbs.usage(book), write=False)

    def usages(self, each: Sequence[Terms]) -> list[Usage]:
        def verb(alias: str, again: bool) -> list[Usage]:
            states, now = dict[str, str](), 0
            rows = rows_of(alias).filter(key__in=[key_of(terms.name) for terms in each]).annotate(now=Now())
            for key, state, now in rows.values_list("key", "state", "now"):  # noqa: B007  # the last one's time
                states[key] = state
            now = now or rows_of(alias).aggregate(now=AggregateNow(), none=Max("version"))["now"]
            found = (RateBook(State(states.get(key_of(terms.name), "")), terms, now * 1000) for terms in each)
            return list(map(ledger_verbs.usage, found))

        return self._session.run(verb, write=False)

    def reset(self, terms: Terms) -> None:
        self.run(terms, lambda book, again: ledger_verbs.reset(book))

    def names(self, limit: int = 1000) -> list[str]:
        def verb(alias: str, again: bool) -> list[str]:
            rows = rows_of(alias).order_by("-used_at", "key").values_list("name", "key")[:limit]
            return [name for row in rows if (name := name_of(*row)) is not None]

        return self._session.run(verb, write=False)

    def terms(self, names: Sequence[str]) -> Mapping[str, Terms]:
        def verb(alias: str, again: bool) -> dict[str, str]:
            return dict(rows_of(alias).filter(key__in=list(map(key_of, names))).values_list("key", "state"))

        texts = self._session.run(verb, write=False)
        found = {name: Terms.from_text(name, State(texts.get(key_of(name), "")).terms) for name in names}
        return {name: terms for name, terms in found.items() if terms is not None}

    def close_idle(self) -> None:
        """Close this thread's connection, unless a transaction is open on it."""
        self._session.close_idle()

    def purge(self, limit: int = 200) -> int:
        """Delete up to ``limit`` rows that expired a day ago; return the number deleted."""

        def verb(alias: str, again: bool) -> int:
            old = rows_of(alias).filter(expires_at__lt=Now() - 86_400_000)
            keys = list(old.order_by("expires_at").values_list("key", flat=True)[:limit])
            return old.filter(key__in=keys).delete()[0] if keys else 0

        return self._session.run(verb)


def rows_of(alias: str) -> QuerySet[RateRow]:
    """Return the rows of all limiters in the database ``alias``."""
    return RateRow._base_manager.using(alias)
