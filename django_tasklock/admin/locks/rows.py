"""Locks as the templates show them, completely formatted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from django.utils.translation import gettext as _, ngettext

from django_tasklock.admin.formats import Meter, host_and_pid, meter_of, time_left
from django_tasklock.names import other_tenant
from django_tasklock.operations.durations import format_duration
from django_tasklock.operations.values import LockState, LockView, RowRef

SYMBOLS = {
    LockState.LIVE: "●",
    LockState.EXPIRING: "◐",
    LockState.NO_EXPIRY: "∞",
    LockState.ORPHANED: "○",
}
"""Symbols shown beside the labels of the states."""
DEAD_SYMBOL = "✕"


class RowLink(NamedTuple):
    """A guarded row. ``url`` is empty if the user may not view its change page, or there is none."""

    ref: RowRef
    url: str


@dataclass(frozen=True)
class LockRow:
    """A lock in a list, or at the head of its own page."""

    name: str
    state: LockState
    style: str
    """The style of the state: its value, or ``dead``."""
    symbol: str
    state_label: str
    dead: bool
    holder: str
    process: str
    """The holder without its task, which is shown beside it."""
    task: str
    task_id: str
    fingerprint: str
    held_for: str
    meter: Meter | None
    time_left: str
    lease: str
    row: RowLink | None
    behind: str
    """The numbers of waiters and parked messages; empty if there are none."""
    notes: tuple[str, ...]
    checkbox_value: str
    """The value of the checkbox: fingerprint and name."""


def lock_row(view: LockView, url_of: Callable[[RowRef], str]) -> LockRow:
    """Format a lock; ``url_of`` returns the URL of a guarded row's change page, or an empty text."""
    info = view.info
    return LockRow(
        name=info.name,
        state=view.state,
        style="dead" if view.dead else view.state.value,
        symbol=DEAD_SYMBOL if view.dead else SYMBOLS[view.state],
        state_label=_("holder has ended") if view.dead else str(view.state.label),
        dead=view.dead,
        holder=info.holder,
        process=host_and_pid(info.holder, info.task, info.task_id),
        task=info.task,
        task_id=info.task_id,
        fingerprint=info.fingerprint,
        held_for=format_duration(info.held_for),
        meter=_meter(view),
        time_left=_format_time_left(view),
        lease=_format_lease(view),
        row=None if view.row is None else RowLink(view.row, "" if other_tenant(info.name) else url_of(view.row)),
        behind=_format_behind(info.waiting, view.parked),
        notes=tuple(_notes(view)),
        checkbox_value=f"{info.fingerprint} {info.name}",
    )


def _meter(view: LockView) -> Meter | None:
    if view.state in (LockState.ORPHANED, LockState.NO_EXPIRY) or view.dead:
        return None  # the timeout does not end it
    return meter_of(view.info)


def _format_time_left(view: LockView) -> str:
    if view.state is LockState.ORPHANED:
        return _("ended %(span)s ago") % {"span": format_duration(view.lapsed_for or 0)}
    if view.info.ttl is None:
        return _("no limit")
    if view.dead:
        return format_duration(view.info.ttl)  # its lease is not renewed any more
    return time_left(view.info)


def _format_lease(view: LockView) -> str:
    if view.state is LockState.ORPHANED:
        return ""
    if view.info.ttl is None:
        return _("never expires")
    return _("lease: %(span)s") % {"span": format_duration(view.info.ttl)}


def _format_behind(waiting: int, parked: int) -> str:
    parts = []
    if waiting:
        parts.append(ngettext("%(count)d waiting", "%(count)d waiting", waiting) % {"count": waiting})
    if parked:
        parts.append(ngettext("%(count)d parked", "%(count)d parked", parked) % {"count": parked})
    return ", ".join(parts)


def _notes(view: LockView) -> list[Any]:
    notes = []
    if view.dead:
        notes.append(_("its process has ended"))
    if view.asked_for is not None:
        notes.append(_("asked to give it back %(span)s ago") % {"span": format_duration(view.asked_for)})
    return notes
