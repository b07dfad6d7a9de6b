"""Rows as the database has them, whatever cache of the ORM a project has."""

from __future__ import annotations

from typing import Any, TypeVar

from django.db.models import Model, QuerySet
from django.db.models.functions import Now

M = TypeVar("M", bound=Model)


def fresh(rows: QuerySet[M]) -> QuerySet[M]:
    """Return ``rows`` so that no cache of the ORM answers for the database.

    cacheops leaves alone what is read for a write, cachalot what has the present time in it.
    """
    read: Any = rows.annotate(tasklock_read_at=Now())
    read._for_write = True
    return read  # type: ignore[no-any-return]
