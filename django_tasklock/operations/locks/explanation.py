"""Why a lock is in its state, in sentences."""

from __future__ import annotations

from django.utils.translation import gettext as _, ngettext

from django_tasklock.operations.durations import format_duration
from django_tasklock.operations.values import LockState, LockView, RowSide
from django_tasklock.texts import printable
from django_tasklock.types import Record


def explain_lock(
    record: Record | None,
    lock: LockView | None,
    row: RowSide | None,
    parked: int,
) -> list[str]:
    """Return the sentences in the active language; ``parked`` is the number of messages that wait for the lock."""
    found = []
    if record is None or lock is None:
        found.append(_("This lock is free."))
    elif lock.state is LockState.ORPHANED:
        found.append(
            _(
                "It is free: the lease of its last holder ended %(ago)s ago without a release, because that process"
                " died, was frozen, or could not reach the store. The entry stays until the lock is acquired again or"
                " swept."
            )
            % {"ago": _format_optional_duration(lock.lapsed_for)}
        )
    else:
        found += _explain_holder(record, lock)
        found += _explain_row(lock, row)
    found += _explain_queue(lock, parked)
    return found


def _explain_holder(record: Record, lock: LockView) -> list[str]:
    info = lock.info
    values = {
        "holder": info.holder,
        "host": printable(record.holder.host),
        "pid": record.holder.pid,
        "held": _format_optional_duration(info.held_for),
        "ttl": _format_optional_duration(info.ttl),
        "left": _format_optional_duration(info.time_left),
        "ago": _format_optional_duration(lock.asked_for),
    }
    if not record.token:
        first = _("Its value was not written by this library, so its holder is not known.")
    elif record.holder.unreadable:
        first = _("Its value in the store cannot be read, so its holder is not known.")
    elif record.holder.is_message:
        first = _(
            "It is kept for a message of its task that is on its way, for %(held)s so far; no process holds it now."
        )
    elif lock.alive is False:
        first = _("Process %(pid)s on %(host)s, which took it %(held)s ago, has ended without giving it back.")
    elif lock.alive:
        first = _("%(holder)s has had it for %(held)s, and its process runs.")
    else:
        first = _("%(holder)s has had it for %(held)s. Whether that process still runs cannot be seen from here.")
    found = [first % values]
    if lock.state is LockState.NO_EXPIRY:
        found.append(_("It has no expiry: it stays locked until it is released."))
    elif lock.alive is False:
        found.append(_("It expires in %(ttl)s, if it is not swept or released before.") % values)
    elif info.time_left <= 0 and record.token:
        found.append(_("It is held beyond its timeout: it expires in %(ttl)s.") % values)
    elif info.without_timeout and record.token:
        found.append(_("If its holder dies it is free within %(ttl)s; it has no timeout.") % values)
    elif record.token:
        found.append(
            _("If its holder dies it is free within %(ttl)s; its timeout ends it in %(left)s at most.") % values
        )
    if lock.asked_for is not None:
        found.append(_("Its holder was asked %(ago)s ago to give it back, and has not yet.") % values)
    return found


def _explain_row(lock: LockView, row: RowSide | None) -> list[str]:
    if lock.row is None:
        return []
    values = {"row": str(lock.row), "state": "" if row is None else str(row.state)}
    if row is not None and not row.exists:
        return [_("Its holder works on %(row)s, which does not exist any more.") % values]
    if row is None or row.field is None:
        return [_("Its holder works on %(row)s, for which this process knows no guard.") % values]
    if not row.field:
        if row.agrees:
            return [_("%(row)s is claimed by this holder: writes of any other are refused.") % values]
        if row.fingerprint:
            text = _("%(row)s is claimed by another than the lock's holder, whose writes to it are refused.")
            return [text % values]
        return [_("%(row)s is not claimed: the lock's holder has not claimed it yet, or has finished.") % values]
    if row.agrees:
        return [_("%(row)s is %(state)s, claimed by this holder: writes of any other are refused.") % values]
    if row.fingerprint:
        return [
            _(
                "%(row)s is %(state)s, claimed by another than the lock's holder, whose writes to it are refused."
                " Either the holder has not claimed the row yet, or it was overtaken."
            )
            % values
        ]
    return [
        _("%(row)s is %(state)s and not claimed: the lock's holder has not claimed it yet, or has finished.") % values
    ]


def _explain_queue(lock: LockView | None, parked: int) -> list[str]:
    found = []
    waiting = 0 if lock is None else lock.info.waiting
    if waiting:
        text = ngettext("%(n)d caller waits for it.", "%(n)d callers wait for it.", waiting)
        found.append(text % {"n": waiting})
    if parked:
        text = ngettext("%(n)d message is parked behind it.", "%(n)d messages are parked behind it.", parked)
        found.append(text % {"n": parked})
        if lock is None or lock.state is LockState.ORPHANED:
            found.append(_("A worker sends the next one within seconds; if none does, no worker of the project runs."))
    return found


def _format_optional_duration(value: float | None) -> str:
    return "∞" if value is None else format_duration(value)
