"""The page of one name: its state, the reasons for it, and the actions on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _

from django_tasklock import operations
from django_tasklock.admin.base import StoreAdmin, found_or_404, is_fragment
from django_tasklock.admin.formats import MOMENT, Fact, moment
from django_tasklock.admin.locks.rows import Row, lock_row
from django_tasklock.admin.words import action_label, parked_label
from django_tasklock.exceptions import BackendUnavailable, TaskLockError
from django_tasklock.operations.durations import format_duration
from django_tasklock.operations.locks.explanation import explain_awaited
from django_tasklock.operations.metrics import PastHold, last_holds
from django_tasklock.operations.optional import if_supported
from django_tasklock.operations.values import LockDetail, LockState, LockView


class Pair(NamedTuple):
    """The same property in the row and in the lock."""

    label: str
    row: str
    lock: str
    code: bool = False


def show(
    admin: StoreAdmin, request: HttpRequest, name: str, extra_context: Mapping[str, Any] | None = None
) -> HttpResponse:
    """Show the page, or its changing part with ``?fragment=1``."""
    detail = found_or_404(operations.get_lock, name)
    lock = None if detail.lock is None else lock_row(detail.lock, admin.row_address(request))
    held = detail.lock is not None and detail.lock.state is not LockState.ORPHANED
    queue = operations.list_waiters(detail.name)
    awaited = operations.find_awaited(detail.name) if held else []
    context: dict[str, Any] = {
        "detail": detail,
        "lock": lock,
        "held": held,
        "awaited": explain_awaited(awaited),
        "queue": queue,
        "more_waiting": queue.total - len(queue.waiters),
        "waiters": [(waiter, moment(waiter.since), format_duration(waiter.waited)) for waiter in queue.waiters],
        "facts": _facts(detail.lock, lock) if detail.lock and lock else [],
        "row_url": admin.row_address(request)(detail.row.ref) if detail.row else "",
        "pairs": _pairs(detail),
        "moment": MOMENT,
        "holds": _holds(detail.name),
        "parked": [
            (message, parked_label(message.state), format_duration(message.waited)) for message in detail.parked
        ],
        "more_parked": max(0, (detail.lock.parked if detail.lock else 0) - len(detail.parked)),
        "history": [(act, action_label(act.action)) for act in detail.history],
        "release_url": admin.address("release", detail.name),
        "ask_url": admin.address("ask", detail.name),
    }
    template = "lock_fragment" if is_fragment(request) else "lock"
    return admin.page(request, template, detail.name, **context, **(extra_context or {}))


def look_up(admin: StoreAdmin, request: HttpRequest) -> HttpResponse:
    """Redirect to the page of ``?name=``, or to the list if the name is invalid."""
    name = request.GET.get("name", "").strip()
    try:
        bare = operations.get_lock(name).name
    except BackendUnavailable:
        raise
    except TaskLockError:
        text = _("“%(name)s” cannot be the name of a lock.") % {"name": name} if name else _("Type the name of a lock.")
        messages.warning(request, text)
        return HttpResponseRedirect(admin.address("changelist"))
    return HttpResponseRedirect(admin.address("change", bare))


class HoldRow(NamedTuple):
    """A past hold of a lock."""

    hold: PastHold
    since: str
    lasted: str
    ended: str


def _holds(name: str) -> list[HoldRow]:
    """Return the last holds; none if the store does not record them."""
    words = {
        "released": _("given back"),
        "expired": _("its lease ran out"),
        "deleted": _("its key was deleted or evicted"),
        "forced": _("taken away"),
    }
    return [
        HoldRow(hold, moment(hold.acquired_at), format_duration(hold.held_for), words.get(hold.ended, hold.ended))
        for hold in if_supported(lambda: last_holds(name)) or ()
    ]


def _facts(view: LockView, row: Row) -> list[Fact]:
    info = view.info
    if view.state is LockState.ORPHANED:  # the value expired with the lease, so nothing else is known
        return [Fact(_("Its lease ended"), _("%(span)s ago") % {"span": format_duration(view.lapsed_for or 0)})]
    facts = [Fact(_("Holder"), row.where)]
    if view.alive is not None:
        facts.append(Fact(_("Its process"), _("runs") if view.alive else _("has ended")))
    if info.task:
        facts.append(Fact(_("Task"), info.task, code=True))
        facts.append(Fact(_("Task id"), info.task_id, code=True))
    facts += [
        Fact(_("Held since"), moment(info.acquired_at)),
        Fact(_("Held for"), row.held_for),
        Fact(_("Time left"), row.left),
    ]
    if row.lease:
        facts.append(Fact(_("Lease"), _("never expires") if info.ttl is None else format_duration(info.ttl)))
    if row.behind:
        facts.append(Fact(_("Behind it"), row.behind))
    if view.asked_for is not None:
        facts.append(Fact(_("Asked to give it back"), _("%(span)s ago") % {"span": format_duration(view.asked_for)}))
    facts.append(Fact(_("Fence"), str(info.fence), code=True))
    if view.instances:
        facts.append(Fact(_("Instances that have it"), str(view.instances)))
    if info.fingerprint:
        facts.append(Fact(_("Fingerprint of the token"), info.fingerprint, code=True))
    return facts


def _pairs(detail: LockDetail) -> list[Pair]:
    row = detail.row
    if row is None or not row.exists:
        return []
    info = None if detail.lock is None else detail.lock.info
    pairs = []
    if row.field:  # otherwise no guard is known here
        label = _("State (%(field)s)") % {"field": row.field}
        pairs.append(Pair(label, str(row.state), _("held") if info else _("free")))
    if row.fenced:
        lock_token = (info.fingerprint or _("not ours")) if info else _("free")
        pairs.append(Pair(_("Fingerprint of the token"), row.fingerprint or _("not claimed"), lock_token, code=True))
        pairs.append(Pair(_("Epoch"), str(row.epoch), ""))
    return pairs
