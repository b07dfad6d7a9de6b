"""The page of one name: its state, the reasons for it, and the actions on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _

from django_tasklock import operations
from django_tasklock.admin.base import StoreAdmin, call_or_404
from django_tasklock.exceptions import BackendUnavailable, TaskLockError
from django_tasklock.operations.values import LockState


def show(
    admin: StoreAdmin, request: HttpRequest, name: str, extra_context: Mapping[str, Any] | None = None
) -> HttpResponse:
    """Show the page."""
    detail = call_or_404(operations.get_lock, name)
    lock, queue = detail.lock, operations.list_waiters(detail.name)
    context: dict[str, Any] = {
        "detail": detail,
        "lock": lock,
        "held": lock is not None and lock.state is not LockState.ORPHANED,
        "row_ref": lock.row if lock else None,
        "row_url": admin.row_url_getter(request)(lock),
        "queue": queue,
        "more_waiting": queue.total - len(queue.waiters),
        "more_parked": max(0, (lock.parked if lock else 0) - len(detail.parked)),
        "release_url": admin.page_url("release", detail.name),
        "ask_url": admin.page_url("ask", detail.name),
    }
    return admin.page(request, "lock", detail.name, **context, **(extra_context or {}))


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
