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
from django_tasklock.admin.base import StoreAdmin, address, is_fragment, may_see, offset, query_string
from django_tasklock.admin.formats import Fact, moment, soft
from django_tasklock.admin.locks.listing import Choice
from django_tasklock.admin.words import parked_label, parked_labels
from django_tasklock.models import Lock
from django_tasklock.operations.durations import format_duration
from django_tasklock.operations.parked.listing import ParkedPage, ParkedQuery, ParkedView

SYMBOLS = {"parked": "‖", "promoted": "▸", "running": "●", "ended": "○", "superseded": "○", "dead": "✕"}
"""Symbols shown beside the labels of the states."""
LOOKS = {"parked": "paused", "promoted": "expiring", "running": "live", "dead": "dead"}
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
    look: str
    symbol: str
    word: str
    waited: str


def listing(admin: StoreAdmin, request: HttpRequest, extra_context: Mapping[str, Any] | None) -> HttpResponse:
    """Show the list, or its changing part with ``?fragment=1``. Raises ``BackendUnavailable``."""
    state = request.GET.get("state", "")
    state = state if state in parked_labels() else ""
    text, after = request.GET.get("q", "").strip(), offset(request.GET.get("after", ""))
    newest = request.GET.get("o", "") == "-age"
    page = operations.list_parked(ParkedQuery(state, text, (), newest, after, admin.list_per_page))
    words = {"state": state, "q": text, "o": "-age" if newest else ""}
    title = capfirst(str(admin.opts.verbose_name_plural))
    context: dict[str, Any] = {
        "q": text,
        "state": state,
        "order": words["o"],
        "after": after,
        "rows": [row_of(admin, request, view) for view in page.messages],
        "states": _states(words, page),
        "by_age": Choice(
            "",
            query_string({**words, "o": "" if newest else "-age"}),
            True,
            sorted="ascending" if newest else "descending",
        ),
        "summary": _summary(page, text, state),
        "store_down": page.store_down,
        "here": query_string({**words, "after": str(after) if after else ""}),
        "everything": query_string({**words, "q": ""}),
        "first": query_string(words) if after else "",
        "next": "" if page.next is None else query_string({**words, "after": str(page.next)}),
        "act_url": admin.address("act"),
    }
    template = "parked_fragment" if is_fragment(request) else "parked"
    return admin.page(request, template, title, **context, **(extra_context or {}))


def detail(
    admin: StoreAdmin, request: HttpRequest, task_id: str, extra_context: Mapping[str, Any] | None = None
) -> HttpResponse:
    """Show the page of one message, or its changing part with ``?fragment=1``; 404 if there is none."""
    view = operations.find_parked(task_id)
    if view is None:
        raise Http404(f"no message {task_id!r} is kept")
    row = row_of(admin, request, view)
    context: dict[str, Any] = {
        "row": row,
        "facts": _facts(view, row),
        "acts": [
            (act, word, f"{admin.address('act')}{query_string(chosen(act, task_id))}")
            for act, word in _actions_for(view)
        ],
    }
    template = "parked_one_fragment" if is_fragment(request) else "parked_one"
    return admin.page(request, template, task_id, **context, **(extra_context or {}))


def row_of(admin: StoreAdmin, request: HttpRequest, view: ParkedView) -> MessageRow:
    """Return a message with its labels and links."""
    info, seen = view.info, may_see(admin.admin_site, request, Lock)
    return MessageRow(
        view=view,
        url=admin.address("change", info.task_id),
        lock_url=address(admin.admin_site, "change", info.name) if seen else "",
        name=soft(info.name),
        task=soft(info.task),
        look=LOOKS.get(info.state, "idle"),
        symbol=SYMBOLS.get(info.state, "○"),
        word=parked_label(info.state),
        waited=format_duration(info.waited),
    )


def chosen(act: str, task_id: str) -> dict[str, str]:
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


def _facts(view: ParkedView, row: MessageRow) -> list[Fact]:
    info = view.info
    facts = [
        Fact(_("Task"), info.task, code=True),
        Fact(_("Task id"), info.task_id, code=True),
        Fact(_("Parked at"), moment(info.parked_at)),
        Fact(_("Waits for"), row.waited),
        Fact(_("Parked by"), info.mode, code=True),
        Fact(_("Sequence number"), str(info.number), code=True),
        Fact(_("Workers that died while running it"), str(info.crashes)),
        Fact(_("Put back without success"), str(info.attempts)),
    ]
    if info.holder:
        facts.append(Fact(_("Run by"), info.holder))
    if info.problem:
        facts.append(Fact(_("Problem"), info.problem))
    return facts


def _states(words: Mapping[str, str], page: ParkedPage) -> list[Choice]:
    state = words["state"]
    found = [Choice(_("all"), query_string({**words, "state": ""}), not state, sum(page.counts.values()))]
    for code, word in parked_labels().items():
        if page.counts.get(code) or code in ("parked", "dead", state):
            url = query_string({**words, "state": code})
            found.append(Choice(word, url, state == code, page.counts.get(code, 0)))
    return found


def _summary(page: ParkedPage, text: str, state: str) -> str:
    shown = len(page.messages)
    if text:
        return ngettext("%(count)d message shown", "%(count)d messages shown", shown) % {"count": shown}
    count = page.counts.get(state, 0) if state else sum(page.counts.values())
    return ngettext("%(count)d message", "%(count)d messages", count) % {"count": count}
