"""Resetting, changing, releasing: a page that says what would happen, then the act. Only POST acts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _

from django_tasklock import operations
from django_tasklock.admin.forms import LimitReasonForm, MemberForm, ShareForm
from django_tasklock.admin.limits.pages import find
from django_tasklock.admin.limits.rows import limit_row, percent, permits_row
from django_tasklock.exceptions import BackendUnavailable, TaskLockError
from django_tasklock.operations.limits.values import LimitOutcome, LimitResult

if TYPE_CHECKING:
    from django_tasklock.admin.limits.admin import RateLimitAdmin

__all__ = ["change", "release", "reset"]


def reset(admin: RateLimitAdmin, request: HttpRequest, name: str) -> HttpResponse:
    """GET confirms. POST forgets what was used and booked."""
    form = LimitReasonForm(request.POST if request.method == "POST" else None)
    if form.is_bound and form.is_valid():
        result = operations.reset_limit(_checked(name), by=admin.actor(request), reason=form.cleaned_data["reason"])
        return _done(admin, request, result)
    return _page(admin, request, name, "limit_reset", _("Reset this rate limit?"), form)


def change(admin: RateLimitAdmin, request: HttpRequest, name: str) -> HttpResponse:
    """GET asks how much of the limit is to be in force. POST has it so."""
    if request.method == "POST":
        form = ShareForm(request.POST)
        if form.is_valid():
            result = operations.change_limit(
                _checked(name), form.share, by=admin.actor(request), reason=form.cleaned_data["reason"]
            )
            return _done(admin, request, result)
    else:
        usage = None if (limit := find(name).limit) is None else limit.usage
        form = ShareForm(initial={"percent": f"{100 if usage is None else usage.share * 100:g}"})
    return _page(admin, request, name, "limit_change", _("Change this rate limit?"), form)


def release(admin: RateLimitAdmin, request: HttpRequest, name: str) -> HttpResponse:
    """GET confirms. POST takes the permit away from the member that was confirmed, and from no other."""
    if request.method == "POST":
        form = MemberForm(request.POST)
        if form.is_valid():
            try:
                result = operations.release_permit(
                    _checked(name),
                    form.cleaned_data["member"],
                    by=admin.actor(request),
                    reason=form.cleaned_data["reason"],
                )
            except BackendUnavailable:
                raise
            except TaskLockError as error:  # a store without permits
                raise Http404(str(error)) from error
            return _done(admin, request, result)
        member = request.POST.get("member", "")
    else:
        member = request.GET.get("member", "")
        form = MemberForm(initial={"member": member})
    permits = find(name).permits
    members = () if permits is None else permits_row(permits, lambda name: "").members
    chosen = next((one for one in members if member and one.info.fingerprint == member), None)
    return _page(admin, request, name, "permit_release", _("Release this permit?"), form, member=chosen)


def _page(
    admin: RateLimitAdmin, request: HttpRequest, name: str, template: str, title: str, form: forms.Form, **more: Any
) -> HttpResponse:
    found = find(name)
    view, back = found.limit, admin.address("change", name)
    known = view is not None and view.usage is not None
    return admin.page(
        request,
        template,
        title,
        trail=((name, back),),
        detail=found,
        limit=limit_row(view, lambda name: "") if view is not None and known else None,
        form=form,
        limit_page=back,
        **more,
    )


def _checked(name: str) -> str:
    """404 for what cannot be a name, or where the store keeps no limits."""
    return find(name).name


def _done(admin: RateLimitAdmin, request: HttpRequest, result: LimitResult) -> HttpResponse:
    level, text = _sentence(result)
    messages.add_message(request, level, text)
    return HttpResponseRedirect(admin.address("change", result.name))


def _sentence(result: LimitResult) -> tuple[int, str]:
    values = {"name": result.name, "share": percent(result.share or 0)}
    if result.outcome is LimitOutcome.RESET:
        text = _("The rate limit “%(name)s” was reset. Whoever waits for it books again.")
    elif result.outcome is LimitOutcome.CHANGED:
        text = _("Of the rate limit “%(name)s” %(share)s is in force now.")
    elif result.outcome is LimitOutcome.RELEASED:
        text = _("The permit of “%(name)s” was released. Who had it learns of it at its next heartbeat.")
    elif result.outcome is LimitOutcome.NOT_HELD:
        return messages.WARNING, _("Nothing was done: that member of “%(name)s” has no permit any more.") % values
    else:
        return messages.WARNING, _("Nothing was done: nothing is known of a rate limit “%(name)s”.") % values
    return messages.SUCCESS, text % values
