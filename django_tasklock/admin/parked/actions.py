"""Publish, requeue and discard messages: a confirmation page, then the action. Only POST acts."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _, ngettext

from django_tasklock import operations
from django_tasklock.admin.base import StoreAdmin
from django_tasklock.admin.forms import ParkedForm
from django_tasklock.admin.parked.pages import message_row
from django_tasklock.exceptions import BackendUnavailable
from django_tasklock.operations.parked.listing import ParkedQuery

OPERATIONS = {
    "publish": operations.publish_parked,
    "requeue": operations.requeue_parked,
    "discard": operations.discard_parked,
}


def act_on_selected(admin: StoreAdmin, request: HttpRequest) -> HttpResponse:
    """Show the confirmation of the selected action; act on POST of the confirmation."""
    parameters = request.POST if request.method == "POST" else request.GET
    action, back = parameters.get("do", ""), admin.page_url("changelist")
    ids = list(dict.fromkeys(parameters.getlist("message")))[: admin.list_per_page]
    if action not in OPERATIONS or not ids:
        messages.warning(request, _("No message was selected."))
        return HttpResponseRedirect(back)
    confirmed = request.method == "POST" and request.POST.get("confirm") == "yes"
    form = ParkedForm(request.POST if confirmed else None)
    if confirmed and form.is_valid():
        return _perform(admin, request, action, ids, form.cleaned_data["reason"], back)
    page = operations.list_parked(ParkedQuery(ids=tuple(ids), limit=len(ids)))
    rows = [message_row(admin, request, view) for view in page.messages]
    found = {view.info.task_id for view in page.messages}
    context: dict[str, Any] = {
        "action": action,
        "rows": rows,
        "missing": [task_id for task_id in ids if task_id not in found],
        "form": form,
        "back": rows[0].url if len(rows) == 1 else back,
        "button": _button(action, len(rows)),
    }
    return admin.page(request, "parked_act", _title(action, len(rows)), **context)


def _perform(
    admin: StoreAdmin, request: HttpRequest, action: str, ids: list[str], reason: str, back: str
) -> HttpResponse:
    by, done = admin.actor(request), 0
    for number, task_id in enumerate(ids):
        try:
            result = OPERATIONS[action](task_id, by=by, reason=reason)
        except BackendUnavailable:
            left = len(ids) - number
            text = ngettext(
                "The lock store cannot be reached. %(count)d message was left as it was, as far as is known.",
                "The lock store cannot be reached. %(count)d messages were left as they were, as far as is known.",
                left,
            )
            messages.error(request, text % {"count": left})
            break
        done += bool(result)
        if not result:
            messages.warning(request, str(result))
    if done:
        text = ngettext("%(n)d message: done.", "%(n)d messages: done.", done) % {"n": done}
        messages.success(request, text)
    return HttpResponseRedirect(back)


def _title(action: str, count: int) -> str:
    return {
        "publish": ngettext("Publish %(count)d message now?", "Publish %(count)d messages now?", count),
        "requeue": ngettext("Let %(count)d message wait again?", "Let %(count)d messages wait again?", count),
        "discard": ngettext("Discard %(count)d message?", "Discard %(count)d messages?", count),
    }[action] % {"count": count}


def _button(action: str, count: int) -> str:
    return {
        "publish": ngettext("Publish %(count)d message", "Publish %(count)d messages", count),
        "requeue": ngettext("Let %(count)d message wait", "Let %(count)d messages wait", count),
        "discard": ngettext("Discard %(count)d message", "Discard %(count)d messages", count),
    }[action] % {"count": count}
