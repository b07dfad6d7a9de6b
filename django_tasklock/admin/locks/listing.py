"""The list of locks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from django.http import HttpRequest, HttpResponse
from django.utils.text import capfirst
from django.utils.translation import gettext as _, ngettext

from django_tasklock import operations
from django_tasklock.admin.base import StoreAdmin
from django_tasklock.admin.locks.filters import Filters
from django_tasklock.exceptions import BackendUnavailable, TaskLockError
from django_tasklock.operations.values import DEAD, LockCounts, LockPage, LockState, LockView


class Choice(NamedTuple):
    """A link that filters or sorts the list."""

    label: str
    url: str
    is_selected: bool
    total: int | None = None
    sorted: str = ""
    """``ascending`` or ``descending`` in the heading of the column by which the list is sorted."""


def show(admin: StoreAdmin, request: HttpRequest, extra_context: Mapping[str, Any] | None) -> HttpResponse:
    """Show the list. Raises ``BackendUnavailable``."""
    filters = Filters.read(request.GET)
    title = capfirst(str(admin.opts.verbose_name_plural))
    try:
        page, filters = _read_page(filters, admin.list_per_page)
        counts = operations.count_locks()
    except BackendUnavailable:
        raise
    except TaskLockError:
        sentences = [
            _(
                "The locks of this project are kept in a store that cannot list its keys, so there is no list here."
                " Look a lock up by its name."
            ),
            _("Redis and the database can list; the store is chosen in the settings (TASKLOCK)."),
        ]
        return admin.say(request, title, sentences)
    row_url = admin.row_url_getter(request)
    context: dict[str, Any] = {
        "filters": filters,
        "states": _state_choices(filters, counts),
        "headings": [_heading(filters, "", _("Held for")), _heading(filters, "left", _("Time left"))],
        "pager": _pager(filters, page, admin.list_per_page),
        "summary": _summarize(filters, page),
        "tasks": sorted({view.info.task for view in page.locks if view.info.task}),
        "locks": [(view, _urls(admin, filters, view, row_url)) for view in page.locks],
        "empty": _empty_message(filters, page),
        "refresh_url": filters.to_query_string(start=filters.start),
        "unfiltered_url": filters.to_query_string(q="", task="", waiting=False),
        "release_selected_url": admin.page_url("release_selected"),
    }
    return admin.page(request, "locks", title, **context, **(extra_context or {}))


def _urls(admin: StoreAdmin, filters: Filters, view: LockView, row_url: Callable[[LockView], str]) -> dict[str, str]:
    """Return where one line leads."""
    return {
        "lock": admin.page_url("change", view.info.name),
        "task": filters.to_query_string(task=view.info.task),
        "row": row_url(view),
    }


def _read_page(filters: Filters, limit: int) -> tuple[LockPage, Filters]:
    page = operations.list_locks(filters.query(limit), dead=filters.dead)
    if not page.locks and filters.start and page.total:
        filters = replace(filters, start=(page.total - 1) // limit * limit)
        # Locks were released meanwhile: show the last page.
        page = operations.list_locks(filters.query(limit), dead=filters.dead)
    return page, filters


def _state_choices(filters: Filters, counts: LockCounts) -> list[Choice]:
    known = [
        ("", _("all live"), counts.live),
        (LockState.EXPIRING.value, LockState.EXPIRING.label, counts.expiring),
        (LockState.NO_EXPIRY.value, LockState.NO_EXPIRY.label, counts.no_expiry),
        (DEAD, _("holder has ended"), counts.dead),
        (LockState.ORPHANED.value, LockState.ORPHANED.label, counts.orphaned),
    ]
    return [
        Choice(str(label), filters.to_query_string(state=state), filters.state == state, count)
        for state, label, count in known
    ]


def _heading(filters: Filters, order: str, label: str) -> Choice:
    """Return the heading of a column, which sorts by it if the list has several orders."""
    if not filters.sortable:
        return Choice(label, "", False)
    reverse_order = f"-{order}" if order else "-age"
    is_selected = filters.order in (order, reverse_order)
    descending = (filters.order == order) == (order == "")  # the longest held first, and the least time left first
    sorted_ = ("descending" if descending else "ascending") if is_selected else ""
    url = filters.to_query_string(order=reverse_order if filters.order == order else order)
    return Choice(label, url, is_selected, sorted=sorted_)


def _pager(filters: Filters, page: LockPage, limit: int) -> dict[str, Any]:
    start, last = filters.start, max(0, page.total - 1) // limit * limit
    return {
        "first": filters.to_query_string() if start else "",
        "previous": filters.to_query_string(start=max(0, start - limit)) if start else "",
        "next": filters.to_query_string(start=page.next) if page.next is not None else "",
        "last": filters.to_query_string(start=last) if last > start + limit and page.next is not None else "",
        "number": _("Page %(number)d of %(of)d") % {"number": start // limit + 1, "of": max(last, start) // limit + 1},
    }


def _summarize(filters: Filters, page: LockPage) -> str:
    shown = len(page.locks)
    if filters.is_search:
        text = ngettext("%(found)d lock found", "%(found)d locks found", page.total) % {"found": page.total}
    elif not shown:
        text = _("No locks")
    elif shown == page.total:
        text = ngettext("%(count)d lock", "%(count)d locks", shown) % {"count": shown}
    else:
        text = _("%(first)d to %(last)d of %(total)d locks") % {
            "first": filters.start + 1,
            "last": filters.start + shown,
            "total": page.total,
        }
    if page.more:
        text += " " + _("among those that expire first")
    return text


def _empty_message(filters: Filters, page: LockPage) -> str:
    if filters.is_search:
        return _("No lock matches.")
    if filters.state:
        return _("No lock is in this state.")
    return _("Nothing is locked right now.")
