"""Formatting for the pages: times, facts, bars, and identifiers with line break opportunities."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any, NamedTuple

from django.utils.formats import date_format
from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe
from django.utils.timezone import localtime
from django.utils.translation import gettext as _

from django_tasklock.operations.durations import format_duration
from django_tasklock.types import LockInfo

DATETIME_FORMAT = "Y-m-d H:i:s"
"""The format of times: to the second, in the active time zone."""
_BREAK_POINTS = re.compile(r"([._:/@-])(?=[^._:/@-])")


class LabeledValue(NamedTuple):
    """A label and a value. ``code``: the value is an identifier, shown in a monospaced font."""

    label: str
    text: str
    code: bool = False


NO_VALUE = "\N{EN DASH}"
"""Shown for a missing or unknown value."""


class Meter(NamedTuple):
    """The time left of the timeout. Numbers are text, because a template would add separators."""

    value: str
    max: str
    low: str


def format_datetime(time: datetime) -> str:
    """Format a time with ``MOMENT``."""
    local: Any = localtime(time)
    return str(date_format(local, DATETIME_FORMAT))


def time_left(info: LockInfo) -> str:
    """Format the time left until a holder's timeout."""
    if info.without_timeout:
        return _("until it is released")
    return format_duration(info.time_left) if info.time_left > 0 else _("past its timeout")


def meter_of(info: LockInfo) -> Meter | None:
    """Return the bar of the time left until a holder's timeout; ``None`` if there is no timeout, or it has passed."""
    left, whole = int(info.time_left), int(info.held_for + info.time_left)
    if left <= 0 or info.without_timeout:
        return None
    return Meter(str(left), str(whole), str(whole // 10))


def escape_with_breaks(text: str) -> SafeString:
    """Escape an identifier and mark line break opportunities, as it has no spaces."""
    return mark_safe(_BREAK_POINTS.sub(r"\1<wbr>", escape(text)))  # noqa: S308


def host_and_pid(holder: str, task: str, task_id: str) -> str:
    """Return ``host:pid`` from ``host:pid (task[id])``."""
    return holder.removesuffix(f" ({task}[{task_id}])")
