"""The page of one name: its state, the reasons for it, and the actions on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _

from django_tasklock import operations
from django_tasklock.admin.base import StoreAdmin, call_or_404, is_fragment
from django_tasklock.admin.formats import DATETIME_FORMAT, LabeledValue, format_datetime
from django_tasklock.admin.labels import action_label, parked_label
from django_tasklock.admin.locks.rows import LockRow, lock_row
from django_tasklock.exceptions import BackendUnavailable, TaskLockError
from django_tasklock.operations.durations import format_duration
from django_tasklock.operations.values import LockDetail, LockState, LockView


class Comparison(NamedTuple):
    """The same property in the row and in the lock."""

    label: str
    row: str
    lock: str
    code: bool = False


def show(
    admin: StoreAdmin, request: HttpRequest, name: str, extra_context: Mapping[str, Any] | None = None
) -> HttpResponse:
    """Show the page, or its changing part with ``?fragment=1``."""
    detail = call_or_404(operations.get_lock, name)
    lock = None if detail.lock is None else lock_row(detail.lock, admin.row_url_getter(request))
    held = detail.lock is not None and detail.lock.state is not LockState.ORPHANED
    queue = operations.list_waiters(detail.name)
    context: dict[str, Any] = {
        "detail": detail,
        "lock": lock,
        "held": held,
        "queue": queue,
        "more_waiting": queue.total - len(queue.waiters),
        "waiters": [
            (waiter, format_datetime(waiter.since), format_duration(waiter.waited)) for waiter in queue.waiters
        ],
        "properties": _property_list(detail.lock, lock) if detail.lock and lock else [],
        "row_url": admin.row_url_getter(request)(detail.row.ref) if detail.row else "",
        "comparisons": _compare_with_row(detail),
        "datetime_format": DATETIME_FORMAT,
        "parked": [
            (message, parked_label(message.state), format_duration(message.waited)) for message in detail.parked
        ],
        "more_parked": max(0, (detail.lock.parked if detail.lock else 0) - len(detail.parked)),
        "history": [(act, action_label(act.action)) for act in detail.history],
        "release_url": admin.page_url("release", detail.name),
        "ask_url": admin.page_url("ask", detail.name),
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
        return HttpResponseRedirect(admin.page_url("changelist"))
    return HttpResponseRedirect(admin.page_url("change", bare))


def _property_list(view: LockView, row: LockRow) -> list[LabeledValue]:
    info = view.info
    if view.state is LockState.ORPHANED:  # the value expired with the lease, so nothing else is known
        return [LabeledValue(_("Its lease ended"), _("%(span)s ago") % {"span": format_duration(view.lapsed_for or 0)})]
    properties = [LabeledValue(_("Holder"), row.process)]
    if view.alive is not None:
        properties.append(LabeledValue(_("Its process"), _("runs") if view.alive else _("has ended")))
    if info.task:
        properties.append(LabeledValue(_("Task"), info.task, code=True))
        properties.append(LabeledValue(_("Task id"), info.task_id, code=True))
    properties += [
        LabeledValue(_("Held since"), format_datetime(info.acquired_at)),
        LabeledValue(_("Held for"), row.held_for),
        LabeledValue(_("Time left"), row.time_left),
    ]
    if row.lease:
        properties.append(
            LabeledValue(_("Lease"), _("never expires") if info.ttl is None else format_duration(info.ttl))
        )
    if row.behind:
        properties.append(LabeledValue(_("Behind it"), row.behind))
    if view.asked_for is not None:
        properties.append(
            LabeledValue(_("Asked to give it back"), _("%(span)s ago") % {"span": format_duration(view.asked_for)})
        )
    properties.append(LabeledValue(_("Fence"), str(info.fence), code=True))
    if view.instances:
        properties.append(LabeledValue(_("Instances that have it"), str(view.instances)))
    if info.fingerprint:
        properties.append(LabeledValue(_("Fingerprint of the token"), info.fingerprint, code=True))
    return properties


def _compare_with_row(detail: LockDetail) -> list[Comparison]:
    row = detail.row
    if row is None or not row.exists:
        return []
    info = None if detail.lock is None else detail.lock.info
    comparisons = []
    if row.field:  # otherwise no guard is known here
        label = _("State (%(field)s)") % {"field": row.field}
        comparisons.append(Comparison(label, str(row.state), _("held") if info else _("free")))
    if row.fenced:
        lock_token = (info.fingerprint or _("not ours")) if info else _("free")
        comparisons.append(
            Comparison(_("Fingerprint of the token"), row.fingerprint or _("not claimed"), lock_token, code=True)
        )
        comparisons.append(Comparison(_("Epoch"), str(row.epoch), ""))
    return comparisons
