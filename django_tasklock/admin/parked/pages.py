"""The list of parked messages, and the page of one message."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext as _, ngettext

from django_tasklock import operations
from django_tasklock.admin.base import StoreAdmin, is_fragment, may_view, page_url, parse_offset, query_string
from django_tasklock.admin.formats import LabeledValue, escape_with_breaks, format_datetime
from django_tasklock.admin.labels import parked_label, parked_labels
from django_tasklock.admin.locks.listing import Choice
from django_tasklock.models import Lock
from django_tasklock.operations.durations import format_duration
from django_tasklock.operations.parked.listing import ParkedPage, ParkedQuery, ParkedView

SYMBOLS = {"parked": "‖", "promoted": "▸", "running": "●", "ended": "○", "superseded": "○", "dead": "✕"}
"""Symbols shown beside the labels of the states."""
STYLES = {"parked": "paused", "promoted": "expiring", "running": "live", "dead": "dead"}
"""The lock states whose style the message states have."""


@dataclass(frozen=True)
class MessageRow:
    """A message in a list, or at the head of its own page."""

    view: ParkedView
    url: str
    lock_url: str
    """The URL of its lock's page; empty if the user may not view it."""
    name: SafeString
    task: SafeString
    style: str
    symbol: str
    state_label: str
    waited: str


def show_list(admin: StoreAdmin, request: HttpRequest, extra_context: Mapping[str, Any] | None) -> HttpResponse:
    """Show the list, or its changing part with ``?fragment=1``. Raises ``BackendUnavailable``."""
    state = request.GET.get("state", "")
    state = state if state in parked_labels() else ""
    text, after = request.GET.get("q", "").strip(), parse_offset(request.GET.get("after", ""))
    newest = request.GET.get("o", "") == "-age"
    page = operations.list_parked(ParkedQuery(state, text, (), newest, after, admin.list_per_page))
    parameters = {"state": state, "q": text, "o": "-age" if newest else ""}
    title = capfirst(str(admin.opts.verbose_name_plural))
    context: dict[str, Any] = {
        "q": text,
        "state": state,
        "order": parameters["o"],
        "after": after,
        "rows": [message_row(admin, request, view) for view in page.messages],
        "states": _state_choices(parameters, page),
        "by_age": Choice(
            "",
            query_string({**parameters, "o": "" if newest else "-age"}),
            True,
            sorted="ascending" if newest else "descending",
        ),
        "summary": _summarize(page, text, state),
        "store_down": page.store_down,
        "refresh_url": query_string({**parameters, "after": str(after) if after else ""}),
        "unfiltered_url": query_string({**parameters, "q": ""}),
        "first": query_string(parameters) if after else "",
        "next": "" if page.next is None else query_string({**parameters, "after": str(page.next)}),
        "act_url": admin.page_url("act"),
    }
    template = "parked_fragment" if is_fragment(request) else "parked"
    return admin.page(request, template, title, **context, **(extra_context or {}))


def show_message(
    admin: StoreAdmin, request: HttpRequest, task_id: str, extra_context: Mapping[str, Any] | None = None
) -> HttpResponse:
    """Show the page of one message, or its changing part with ``?fragment=1``; 404 if there is none."""
    view = operations.find_parked(task_id)
    if view is None:
        raise Http404(f"no message {task_id!r} is kept")
    row = message_row(admin, request, view)
    context: dict[str, Any] = {
        "row": row,
        "properties": _property_list(view, row),
        "actions": [
            (act, state_label, f"{admin.page_url('act')}{query_string(action_parameters(act, task_id))}")
            for act, state_label in _actions_for(view)
        ],
    }
    template = "parked_one_fragment" if is_fragment(request) else "parked_one"
    return admin.page(request, template, task_id, **context, **(extra_context or {}))


def message_row(admin: StoreAdmin, request: HttpRequest, view: ParkedView) -> MessageRow:
    """Return a message with its labels and links."""
    info, linked = view.info, may_view(admin.admin_site, request, Lock)
    return MessageRow(
        view=view,
        url=admin.page_url("change", info.task_id),
        lock_url=page_url(admin.admin_site, "change", info.name) if linked else "",
        name=escape_with_breaks(info.name),
        task=escape_with_breaks(info.task),
        style=STYLES.get(info.state, "idle"),
        symbol=SYMBOLS.get(info.state, "○"),
        state_label=parked_label(info.state),
        waited=format_duration(info.waited),
    )


def action_parameters(act: str, task_id: str) -> dict[str, str]:
    """Return the parameters of the confirmation page of an action."""
    return {"do": act, "message": task_id}


def _actions_for(view: ParkedView) -> list[tuple[str, str]]:
    if view.info.state == "dead":
        return [("requeue", _("Let it wait again…")), ("discard", _("Discard…"))]
    if view.info.state == "parked":
        return [("publish", _("Publish now…")), ("discard", _("Discard…"))]
    if view.info.state in ("promoted", "running"):
        return [("publish", _("Publish now…"))]
    return []


def _property_list(view: ParkedView, row: MessageRow) -> list[LabeledValue]:
    info = view.info
    properties = [
        LabeledValue(_("Task"), info.task, code=True),
        LabeledValue(_("Task id"), info.task_id, code=True),
        LabeledValue(_("Parked at"), format_datetime(info.parked_at)),
        LabeledValue(_("Waits for"), row.waited),
        LabeledValue(_("Parked by"), info.mode, code=True),
        LabeledValue(_("Sequence number"), str(info.number), code=True),
        LabeledValue(_("Workers that died while running it"), str(info.crashes)),
        LabeledValue(_("Put back without success"), str(info.attempts)),
    ]
    if info.holder:
        properties.append(LabeledValue(_("Run by"), info.holder))
    if info.problem:
        properties.append(LabeledValue(_("Problem"), info.problem))
    return properties


def _state_choices(parameters: Mapping[str, str], page: ParkedPage) -> list[Choice]:
    state = parameters["state"]
    found = [Choice(_("all"), query_string({**parameters, "state": ""}), not state, sum(page.counts.values()))]
    for code, state_label in parked_labels().items():
        if page.counts.get(code) or code in ("parked", "dead", state):
            url = query_string({**parameters, "state": code})
            found.append(Choice(state_label, url, state == code, page.counts.get(code, 0)))
    return found


def _summarize(page: ParkedPage, text: str, state: str) -> str:
    shown = len(page.messages)
    if text:
        return ngettext("%(count)d message shown", "%(count)d messages shown", shown) % {"count": shown}
    count = page.counts.get(state, 0) if state else sum(page.counts.values())
    return ngettext("%(count)d message", "%(count)d messages", count) % {"count": count}
