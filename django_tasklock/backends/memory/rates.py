"""The rate limits of one process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from django_tasklock.backends.contract.rates import TENANT, RateStore, Terms, split_tenant
from django_tasklock.backends.ledger import verbs
from django_tasklock.backends.ledger.book import RateBook
from django_tasklock.backends.ledger.state import State
from django_tasklock.backends.memory.store import store

PRUNE_EVERY = 512  # operations


class MemoryRates(RateStore):
    """The contract within one process. All objects share the same limiters, in order of last use."""

    where = "loop"

    def __init__(self) -> None:
        self._operations = 0

    def run(self, terms: Terms, verb: str, *arguments: int) -> Any:
        with store.mutex:
            books, time = store.rates, store.clock.now_in_microseconds()
            if verb == "usage":  # changes nothing
                known = books.get(terms.name)
                return verbs.usage(RateBook(State(known.to_json() if known else ""), terms, time))
            self._operations += 1
            if self._operations % PRUNE_EVERY == 0:
                for name in [name for name, state in books.items() if state.expires < time]:
                    del books[name]
            state = books.pop(terms.name, None) or State()
            books[terms.name] = state
            book = RateBook(state, terms, time)
            answer = getattr(verbs, verb)(book, *arguments)
            state.expires, state.terms = book.expires, terms.text()
            return answer

    def names(self, limit: int = 1000, of: str = "") -> list[str]:
        with store.mutex:
            used = list(reversed(store.rates))
        limiters = dict.fromkeys(split_tenant(name)[0] for name in used)
        return ([name for name in used if name.startswith(of + TENANT)] if of else list(limiters))[:limit]

    def count_tenants(self, names: Sequence[str]) -> Mapping[str, int]:
        with store.mutex:
            found = Counter(split_tenant(name)[0] for name in store.rates if TENANT in name)
        return {name: found[name] for name in names if found[name]}

    def terms(self, names: Sequence[str]) -> Mapping[str, Terms]:
        with store.mutex:
            found = {name: Terms.from_text(name, store.rates[name].terms) for name in names if name in store.rates}
            return {name: terms for name, terms in found.items() if terms is not None}
