"""Rate limits as rows of one table, one for each limiter: its ``State`` as JSON.

A row is changed only by an UPDATE whose condition has the version that was read, so only one of the processes that
read the same version writes it, at every isolation level; the others read it again. This is slower than Redis: two
queries for each operation, more under contention. A caller that loses the race may be overtaken by a later one.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from django.db.models import Max, QuerySet

from django_tasklock.backends.contract.rates import NEVER_AGAIN, TENANT, RateStore, Terms, Usage, split_tenant
from django_tasklock.backends.database.names import in_ascii, key_of, name_of
from django_tasklock.backends.database.purging import Purging
from django_tasklock.backends.database.rows import insert
from django_tasklock.backends.ledger import verbs
from django_tasklock.backends.ledger.book import RateBook
from django_tasklock.backends.ledger.state import State
from django_tasklock.db.clock import AggregateNow, Now
from django_tasklock.db.fresh import fresh
from django_tasklock.db.session import Session
from django_tasklock.exceptions import BackendUnavailable
from django_tasklock.models import RateRow

MAX_RACE = 10.0  # seconds for which an operation may lose the race for a row


class DatabaseRates(RateStore):
    """Rate limits by the database's clock, in milliseconds. Operations that write refuse to run inside ``atomic()``."""

    where = "django"

    def __init__(self) -> None:
        self._session = Session(RateRow, "rate limit")
        self.purging = Purging(self._session, self.purge)

    def run(self, terms: Terms, verb: str, *arguments: int) -> Any:
        write = verb != "usage"

        def attempt(alias: str, again: bool) -> Any:
            if again and verb in NEVER_AGAIN:
                text = f"the rate limit {terms.name!r} may have been changed: the connection broke before the answer"
                raise BackendUnavailable(text, name=terms.name, doubt=True)
            key, ends = key_of(terms.name), time.monotonic() + MAX_RACE
            while True:
                found = rows_of(alias).filter(key=key).annotate(now=Now()).values_list("state", "version", "now")
                text, version, now = next(iter(found), ("", 0, 0))
                if not now:
                    now = rows_of(alias).filter(key=key).aggregate(now=AggregateNow(), none=Max("version"))["now"]
                book = RateBook(State(text), terms, now * 1000)
                answer = getattr(verbs, verb)(book, *arguments)
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

    def usages(self, each: Sequence[Terms]) -> list[Usage]:
        def verb(alias: str, again: bool) -> list[Usage]:
            states, now = dict[str, str](), 0
            rows = rows_of(alias).filter(key__in=[key_of(terms.name) for terms in each]).annotate(now=Now())
            for key, state, now in rows.values_list("key", "state", "now"):  # noqa: B007  # the last one's time
                states[key] = state
            now = now or rows_of(alias).aggregate(now=AggregateNow(), none=Max("version"))["now"]
            found = (RateBook(State(states.get(key_of(terms.name), "")), terms, now * 1000) for terms in each)
            return list(map(verbs.usage, found))

        return self._session.run(verb, write=False)

    def names(self, limit: int = 1000, of: str = "") -> list[str]:
        def verb(alias: str, again: bool) -> list[str]:
            rows = rows_of(alias).order_by("-used_at", "key").values_list("name", "key")
            found = dict[str, str]()
            if of:
                tenants = rows.filter(name__startswith=in_ascii(of + TENANT))
                names = (name for row in tenants if (name := name_of(*row)) is not None)
                return [name for name in names if name.startswith(of + TENANT)][:limit]  # some databases ignore case
            for text, key in rows:
                limiter, _ = split_tenant(text)
                if limiter not in found and (name := name_of(text, key)) is not None:
                    found[limiter] = split_tenant(name)[0]
            return list(found.values())[:limit]

        return self._session.run(verb, write=False)

    def count_tenants(self, names: Sequence[str]) -> Mapping[str, int]:
        def verb(alias: str, again: bool) -> list[str]:
            return list(rows_of(alias).filter(name__contains=TENANT).values_list("name", flat=True))

        found = Counter(split_tenant(text)[0] for text in self._session.run(verb, write=False))
        return {name: number for name in names if (number := found[in_ascii(name)])}

    def terms(self, names: Sequence[str]) -> Mapping[str, Terms]:
        def verb(alias: str, again: bool) -> dict[str, str]:
            return dict(rows_of(alias).filter(key__in=list(map(key_of, names))).values_list("key", "state"))

        texts = self._session.run(verb, write=False)
        found = {name: Terms.from_text(name, State(texts.get(key_of(name), "")).terms) for name in names}
        return {name: terms for name, terms in found.items() if terms is not None}

    def purge(self, limit: int = 200) -> int:
        """Delete up to ``limit`` rows that expired a day ago; return the number deleted."""

        def verb(alias: str, again: bool) -> int:
            old = rows_of(alias).filter(expires_at__lt=Now() - 86_400_000)
            keys = list(old.order_by("expires_at").values_list("key", flat=True)[:limit])
            return old.filter(key__in=keys).delete()[0] if keys else 0

        return self._session.run(verb)


def rows_of(alias: str) -> QuerySet[RateRow]:
    """Return the rows of all limiters in the database ``alias``."""
    return fresh(RateRow._base_manager.using(alias))
