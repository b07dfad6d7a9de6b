"""Locks as the templates show them, completely formatted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from django.utils.translation import gettext as _, ngettext

from django_tasklock.admin.formats import Bar, bar_of, host_and_pid, time_left
from django_tasklock.operations.durations import format_duration
from django_tasklock.operations.values import LockState, LockView, RowRef

SYMBOLS = {
    LockState.LIVE: "●",
    LockState.EXPIRING: "◐",
    LockState.NO_EXPIRY: "∞",
    LockState.ORPHANED: "○",
}
"""Symbols shown beside the labels of the states."""
DEAD = "✕"


class RowLink(NamedTuple):
    """A guarded row. ``url`` is empty if the user may not view its change page, or there is none."""

    ref: RowRef
    url: str


@dataclass(frozen=True)
class Row:
    """A lock in a list, or at the head of its own page."""

    name: str
    state: LockState
    look: str
    """The style of the state: its value, or ``dead``."""
    symbol: str
    word: str
    dead: bool
    holder: str
    where: str
    """The holder without its task, which is shown beside it."""
    task: str
    task_id: str
    fingerprint: str
    held_for: str
    bar: Bar | None
    left: str
    lease: str
    row: RowLink | None
    behind: str
    """The numbers of waiters and parked messages; empty if there are none."""
    notes: tuple[str, ...]
    pick: str
    """The value of the checkbox: fingerprint and name."""


def lock_row(view: LockView, address_of: Callable[[RowRef], str]) -> Row:
    """Format a lock; ``address_of`` returns the URL of a guarded row's change page, or an empty text."""
    info = view.info
    return Row(
        name=info.name,
        state=view.state,
        look="dead" if view.dead else view.state.value,
        symbol=DEAD if view.dead else SYMBOLS[view.state],
        word=_("holder has ended") if view.dead else str(view.state.label),
        dead=view.dead,
        holder=info.holder,
        where=host_and_pid(info.holder, info.task, info.task_id),
        task=info.task,
        task_id=info.task_id,
        fingerprint=info.fingerprint,
        held_for=format_duration(info.held_for),
        bar=_bar(view),
        left=_left(view),
        lease=_lease(view),
        row=None if view.row is None else RowLink(view.row, address_of(view.row)),
        behind=_behind(info.waiting, view.parked),
        notes=tuple(_notes(view)),
        pick=f"{info.fingerprint} {info.name}",
    )


def _bar(view: LockView) -> Bar | None:
    if view.state in (LockState.ORPHANED, LockState.NO_EXPIRY) or view.dead:
        return None  # the timeout does not end it
    return bar_of(view.info)


def _left(view: LockView) -> str:
    if view.state is LockState.ORPHANED:
        return _("ended %(span)s ago") % {"span": format_duration(view.lapsed_for or 0)}
    if view.info.ttl is None:
        return _("no limit")
    if view.dead:
        return format_duration(view.info.ttl)  # its lease is not renewed any more
    return time_left(view.info)


def _lease(view: LockView) -> str:
    if view.state is LockState.ORPHANED:
        return ""
    if view.info.ttl is None:
        return _("never expires")
    return _("lease: %(span)s") % {"span": format_duration(view.info.ttl)}


def _behind(waiting: int, parked: int) -> str:
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
