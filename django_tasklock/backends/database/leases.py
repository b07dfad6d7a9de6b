"""The operations of a holder, which locks and permits in the database have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from django.db.models import QuerySet

from django_tasklock.backends.contract.stores import LeaseStore
from django_tasklock.backends.database.names import key_of
from django_tasklock.backends.database.purging import Purging
from django_tasklock.db.clock import Now
from django_tasklock.db.session import Session
from django_tasklock.types import Renewal, RenewalResult

CHUNK = 200  # leases that one statement renews
ACQUIRE_FACTOR = 4  # an acquire purges after this many times as many rows: it leaves that to releases, if there are any


class DatabaseLeases(LeaseStore):
    """Leases as rows with ``key``, ``token``, ``expires_at`` and ``hold_until``, by the database's clock."""

    where = "django"

    session: Session
    purging: Purging

    @property
    def database(self) -> str | None:
        return self.session.alias

    @abstractmethod
    def rows(self, alias: str) -> QuerySet[Any]:
        """Return the rows of all leases in the database ``alias``, with ``asked_at``."""

    def held(self, alias: str, **which: Any) -> QuerySet[Any]:
        """Return the rows that match ``which`` and whose lease has not expired."""
        return self.rows(alias).filter(expires_at__gt=Now(), **which)

    def purge_if_due(self, factor: int = 1) -> None:
        """Delete old rows if enough rows were added: see ``Purging``."""
        self.purging.purge_if_due(factor)

    def extend(self, name: str, token: str, ttl: int, hold: int) -> bool:
        def verb(alias: str, again: bool) -> bool:
            held = self.held(alias, key=key_of(name), token=token)
            return held.update(expires_at=Now() + ttl, hold_until=Now() + hold) > 0 or held.exists()

        return self.session.run(verb, name=name)

    def renew(self, batch: Sequence[Renewal]) -> list[RenewalResult]:
        renewed: dict[tuple[str, str], RenewalResult] = {}
        for ttl, group in groupby(sorted(batch, key=_ttl), key=_ttl):
            pairs = sorted({(key_of(item.name), item.token) for item in group})  # sorted, against deadlocks
            for start in range(0, len(pairs), CHUNK):
                renewed |= self._renew(pairs[start : start + CHUNK], ttl)
        return [renewed.get((key_of(item.name), item.token), RenewalResult.LOST) for item in batch]

    def _renew(self, pairs: list[tuple[str, str]], ttl: int) -> dict[tuple[str, str], RenewalResult]:
        def verb(alias: str, again: bool) -> dict[tuple[str, str], RenewalResult]:
            keys, tokens = zip(*pairs, strict=True)
            held = self.held(alias, key__in=keys, token__in=tokens)
            if held.filter(asked_at=0).update(expires_at=Now() + ttl) == len(pairs):
                return dict.fromkeys(pairs, RenewalResult.RENEWED)
            held.filter(asked_at__gt=0).update(expires_at=Now() + ttl)
            answers = (RenewalResult.RENEWED, RenewalResult.ASKED)
            return {
                (key, token): answers[asked > 0] for key, token, asked in held.values_list("key", "token", "asked_at")
            }

        return self.session.run(verb)

    def close_idle(self) -> None:
        """Close this thread's connection to the database, unless a transaction is open on it."""
        self.session.close_idle()


def _ttl(item: Renewal) -> int:
    return item.ttl
