"""Datetimes stored in tables, which are naive if ``USE_TZ`` is off, and datetimes as text."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.conf import settings
from django.utils.formats import date_format
from django.utils.timezone import get_default_timezone, is_naive, localtime, make_aware, make_naive


def with_zone(at: datetime) -> datetime:
    """Return a datetime from a table as an aware one."""
    return make_aware(at, get_default_timezone()) if is_naive(at) else at


def as_stored(at: datetime) -> datetime:
    """Return a datetime as the tables store it: naive if ``USE_TZ`` is off."""
    return at if settings.USE_TZ else make_naive(at, get_default_timezone())


def format_datetime(at: datetime) -> str:
    """Return a datetime to the second, in the active time zone."""
    local: Any = localtime(with_zone(at))
    return str(date_format(local, "Y-m-d H:i:s"))
