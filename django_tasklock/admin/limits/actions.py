"""Reset, change, pause and resume limits, and release permits: a confirmation page, then the action. Only POST acts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _

from django_tasklock.admin.base import StoreAdmin, call_or_404
from django_tasklock.admin.forms import LimitReasonForm, MemberForm, PauseForm, ShareForm
from django_tasklock.admin.limits.rows import limit_row, permits_row
from django_tasklock.operations.limits.permits import release_permit
from django_tasklock.operations.limits.rates import change_limit, get_limit, pause_limit, reset_limit, resume_limit
from django_tasklock.operations.limits.values import LimitDetail, LimitResult


def reset(admin: StoreAdmin, request: HttpRequest, name: str) -> HttpResponse:
    """Show the confirmation on GET. On POST delete the usage and the reservations."""
    form = LimitReasonForm(request.POST if request.method == "POST" else None)
    if form.is_valid():
        return _perform(admin, request, name, form, reset_limit)
    return _render_confirmation(admin, request, "limit_reset", _("Reset this rate limit?"), _get_limit(name), form)


def change(admin: StoreAdmin, request: HttpRequest, name: str) -> HttpResponse:
    """Show the form for the share of the limit on GET. On POST enforce that share."""
    form = ShareForm(request.POST) if request.method == "POST" else None
    if form and form.is_valid():
        return _perform(admin, request, name, form, change_limit, form.share)
    detail = _get_limit(name)
    usage = detail.limit.usage if detail.limit else None
    form = form or ShareForm(initial={"percent": f"{usage.share * 100 if usage else 100:g}"})
    return _render_confirmation(admin, request, "limit_change", _("Change this rate limit?"), detail, form)


def pause(admin: StoreAdmin, request: HttpRequest, name: str) -> HttpResponse:
    """Show the form for the length of the pause on GET. On POST pause the limit."""
    form = PauseForm(request.POST if request.method == "POST" else None)
    if form.is_valid():
        return _perform(admin, request, name, form, pause_limit, form.seconds)
    return _render_confirmation(admin, request, "limit_pause", _("Pause this rate limit?"), _get_limit(name), form)


def resume(admin: StoreAdmin, request: HttpRequest, name: str) -> HttpResponse:
    """Show the confirmation on GET. On POST end the pause."""
    form = LimitReasonForm(request.POST if request.method == "POST" else None)
    if form.is_valid():
        return _perform(admin, request, name, form, resume_limit)
    return _render_confirmation(
        admin, request, "limit_resume", _("End the pause of this rate limit?"), _get_limit(name), form
    )


def release(admin: StoreAdmin, request: HttpRequest, name: str) -> HttpResponse:
    """Show the confirmation on GET. On POST release the permit of the confirmed member, and of no other."""
    parameters = request.POST if request.method == "POST" else request.GET
    member = parameters.get("member", "")
    form = MemberForm(parameters) if request.method == "POST" else MemberForm(initial={"member": member})
    if form.is_valid():
        return _perform(admin, request, name, form, release_permit, form.cleaned_data["member"])
    detail = _get_limit(name)
    members = permits_row(detail.permits, _no_url).members if detail.permits else ()
    selected = next((one for one in members if member and one.info.fingerprint == member), None)
    return _render_confirmation(
        admin, request, "permit_release", _("Release this permit?"), detail, form, member=selected
    )


def _perform(
    admin: StoreAdmin,
    request: HttpRequest,
    name: str,
    form: LimitReasonForm,
    operation: Callable[..., LimitResult],
    *arguments: str | float,
) -> HttpResponse:
    """Act, and show the result on the limiter's page; 404 for an invalid name."""
    result = call_or_404(operation, name, *arguments, by=admin.actor(request), reason=form.cleaned_data["reason"])
    messages.add_message(request, messages.SUCCESS if result else messages.WARNING, str(result))
    return HttpResponseRedirect(admin.page_url("change", result.name))


def _render_confirmation(
    admin: StoreAdmin,
    request: HttpRequest,
    template: str,
    title: str,
    detail: LimitDetail,
    form: LimitReasonForm,
    **more: Any,
) -> HttpResponse:
    """Show the confirmation page with the form that acts."""
    view, page = detail.limit, admin.page_url("change", detail.name)
    limit = None if view is None or view.usage is None else limit_row(view, _no_url)
    context = {"detail": detail, "limit": limit, "form": form, "limit_page": page, **more}
    return admin.page(request, template, title, breadcrumbs=((detail.name, page),), **context)


def _get_limit(name: str) -> LimitDetail:
    return call_or_404(get_limit, name)


def _no_url(name: str) -> str:
    """Return no URL: names on confirmation pages are not links."""
    return ""
