"""How the pages write things: times, facts, bars, and identifiers that may break at the end of a line."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any, NamedTuple

from django.utils.formats import date_format
from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe
from django.utils.timezone import localtime
from django.utils.translation import gettext as _

from django_tasklock.operations.durations import span
from django_tasklock.types import LockInfo

MOMENT = "Y-m-d H:i:s"
"""How times are written: to the second, in the reader's time zone."""
_JOINTS = re.compile(r"([._:/@-])(?=[^._:/@-])")


class Fact(NamedTuple):
    """Something that is known. ``code``: an identifier, to be read letter by letter."""

    label: str
    text: str
    code: bool = False


NONE = "\N{EN DASH}"
"""In the place of what is not known, or is not there."""


class Bar(NamedTuple):
    """How much of the timeout is left. Text: a template would put separators into numbers."""

    value: str
    of: str
    low: str


def moment(time: datetime) -> str:
    """Write a time as ``MOMENT`` says."""
    local: Any = localtime(time)
    return str(date_format(local, MOMENT))


def time_left(info: LockInfo) -> str:
    """Write how much of a holder's timeout is left."""
    if info.without_timeout:
        return _("until it is released")
    return span(info.time_left) if info.time_left > 0 else _("past its timeout")


def bar_of(info: LockInfo) -> Bar | None:
    """Return the bar of what is left of a holder's timeout; ``None``: nothing runs down."""
    left, whole = int(info.time_left), int(info.held_for + info.time_left)
    if left <= 0 or info.without_timeout:
        return None
    return Bar(str(left), str(whole), str(whole // 10))


def soft(text: str) -> SafeString:
    """Escape the text and mark where a line may end: identifiers have no spaces."""
    return mark_safe(_JOINTS.sub(r"\1<wbr>", escape(text)))  # noqa: S308


def host_and_pid(holder: str, task: str, task_id: str) -> str:
    """Cut ``host:pid`` out of ``host:pid (task[id])``."""
    return holder.removesuffix(f" ({task}[{task_id}])")
