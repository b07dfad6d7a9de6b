"""Datetimes stored in tables, which are naive if ``USE_TZ`` is off."""

from __future__ import annotations

from datetime import datetime

from django.conf import settings
from django.utils.timezone import get_default_timezone, is_naive, make_aware, make_naive


def with_zone(at: datetime) -> datetime:
    """Return a datetime from a table as an aware one."""
    return make_aware(at, get_default_timezone()) if is_naive(at) else at


def as_stored(at: datetime) -> datetime:
    """Return a datetime as the tables store it: naive if ``USE_TZ`` is off."""
    return at if settings.USE_TZ else make_naive(at, get_default_timezone())
