"""One row per lock: the meaning of its columns, and the queries for a single row.

``expires_at`` is positive while the lock is held or its lease has run out. A released row has the negative time of the
release there, so that one index serves listing and purging. It stays for an hour, so that the next fence is greater
even if the clock is set back; after that, a fence from the clock is greater anyway.

``holder`` is JSON in ASCII and includes the name, because the column ``name``, which is for people, may have a
character set that cannot store it.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from django.db import IntegrityError, transaction
from django.db.models import Max, Model, QuerySet

from django_tasklock.backends.contract.codec import holder_of, json_object
from django_tasklock.backends.database.names import in_ascii
from django_tasklock.db.clock import AggregateNow, Now
from django_tasklock.db.fresh import fresh
from django_tasklock.models import LockRow
from django_tasklock.types import AcquireRequest, Record


class Row(NamedTuple):
    """The row of a lock or a permit as one query read it, with the database's time."""

    token: str
    holder: str
    acquired_at: int
    hold_until: int
    expires_at: int
    fence: int
    asked_at: int
    now: int

    @property
    def live(self) -> bool:
        """Whether the lease has not expired."""
        return self.expires_at > self.now

    @property
    def lapsed(self) -> bool:
        """Whether the lease has expired and was not released."""
        return 0 < self.expires_at <= self.now

    def record(self) -> Record:
        """Return the row as the contract's record."""
        holder = json_object(self.holder)
        return Record(
            name=str(holder.get("name", "")),
            token=self.token,
            holder=holder_of(holder),
            at=self.acquired_at,
            until=self.hold_until,
            now=self.now,
            fence=self.fence,
            ttl=self.expires_at - self.now,
            asked=self.asked_at,
        )


FIELDS = ("token", "holder", "acquired_at", "hold_until", "expires_at", "fence", "asked_at")
"""The columns that are read."""


def rows_of(alias: str) -> QuerySet[LockRow]:
    """Return the rows of all locks in the database ``alias``."""
    return fresh(LockRow._base_manager.using(alias))


def read_row(alias: str, key: str) -> tuple[Row | None, int]:
    """Return the row, if there is one, and the database's time: an aggregate returns the time without a row, too."""
    found: dict[str, Any] = rows_of(alias).filter(key=key).aggregate(now=AggregateNow(), **_MAXIMA)
    return (None if found["fence"] is None else Row(**found)), found["now"]


RELEASED = {"expires_at": Now() * -1}
"""The column that a release changes."""
_MAXIMA = {field: Max(field) for field in FIELDS}


def unchanged(alias: str, key: str, row: Row) -> QuerySet[LockRow]:
    """Return a query for the row, which is empty if the row has been changed since it was read."""
    return rows_of(alias).filter(key=key, token=row.token, fence=row.fence, expires_at=row.expires_at)


def granted_columns(request: AcquireRequest, fence: int) -> dict[str, Any]:
    """Return the columns that a grant changes."""
    return {
        "fence": fence,
        "acquired_at": Now(),
        "name": in_ascii(request.name),
        "token": request.token,
        "holder": holder_text(request),
        "hold_until": Now() + request.hold_ms,
        "expires_at": Now() + request.ttl_ms,
        "asked_at": 0,
    }


def holder_text(request: AcquireRequest) -> str:
    """Return the holder as it is stored: JSON, with the name."""
    return json.dumps({**json_object(request.holder), "name": request.name})


def insert(alias: str, row: Model) -> bool:
    """Add a row. False: another process has added it already."""
    try:
        with transaction.atomic(using=alias):
            # Unlike save(): no signals to receivers meant for other models.
            type(row)._base_manager.using(alias).bulk_create([row])
    except IntegrityError:
        return False
    return True
