"""Reset, change, pause and resume limits, and release permits: a confirmation page, then the action. Only POST acts."""

from __future__ import annotations

from collections.abc import Callable

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _

from django_tasklock.admin.base import StoreAdmin, call_or_404
from django_tasklock.admin.forms import LimitReasonForm, MemberForm, PauseForm, ShareForm
from django_tasklock.operations.limits.permits import release_permit
from django_tasklock.operations.limits.rates import change_limit, get_limit, pause_limit, reset_limit, resume_limit
from django_tasklock.operations.limits.values import LimitDetail, LimitResult
from django_tasklock.templatetags.tasklock import limit_line, member_line


def reset(admin: StoreAdmin, request: HttpRequest, name: str) -> HttpResponse:
    """Show the confirmation on GET. On POST delete the usage and the reservations."""
    form = LimitReasonForm(request.POST if request.method == "POST" else None)
    if form.is_valid():
        return _perform(admin, request, name, form, reset_limit)
    warning = [
        _(
            "This deletes what was used and booked, and ends a pause and a lowered limit. Waiting callers book again,"
            " so the whole limit may be used at once, in addition to what the remote service has counted already."
        ),
        _("Tenants are counted separately, and are not reset."),
    ]
    title, button = _("Reset this rate limit?"), _("Reset the rate limit")
    return _confirm(admin, request, title, _get_limit(name), form, warning, button, danger=True)


def change(admin: StoreAdmin, request: HttpRequest, name: str) -> HttpResponse:
    """Show the form for the share of the limit on GET. On POST enforce that share."""
    form = ShareForm(request.POST) if request.method == "POST" else None
    if form and form.is_valid():
        return _perform(admin, request, name, form, change_limit, form.share)
    detail = _get_limit(name)
    usage = detail.limit.usage if detail.limit else None
    form = form or ShareForm(initial={"percent": f"{usage.share * 100 if usage else 100:g}"})
    warning = [
        _(
            "This applies to all processes at once, for calls that are booked from now on, until it is changed again,"
            " the limiter is reset, or a day has passed without a call. An adaptive limit goes on adapting from there."
        )
    ]
    return _confirm(admin, request, _("Change this rate limit?"), detail, form, warning, _("Change the limit"))


def pause(admin: StoreAdmin, request: HttpRequest, name: str) -> HttpResponse:
    """Show the form for the length of the pause on GET. On POST pause the limit."""
    form = PauseForm(request.POST if request.method == "POST" else None)
    if form.is_valid():
        return _perform(admin, request, name, form, pause_limit, form.seconds)
    warning = [
        _(
            "No call starts meanwhile, in any process. Waiting callers keep their turns and wait so much longer; a call"
            " that may not wait so long is refused or put off, as its options say."
        )
    ]
    return _confirm(admin, request, _("Pause this rate limit?"), _get_limit(name), form, warning, _("Pause it"))


def resume(admin: StoreAdmin, request: HttpRequest, name: str) -> HttpResponse:
    """Show the confirmation on GET. On POST end the pause."""
    form = LimitReasonForm(request.POST if request.method == "POST" else None)
    if form.is_valid():
        return _perform(admin, request, name, form, resume_limit)
    warning = [
        _(
            "Waiting callers go on in their order, at the pace of the limit, within some seconds. If the remote service"
            " asked for the pause, it may refuse them."
        )
    ]
    title = _("End the pause of this rate limit?")
    return _confirm(admin, request, title, _get_limit(name), form, warning, _("End the pause"))


def release(admin: StoreAdmin, request: HttpRequest, name: str) -> HttpResponse:
    """Show the confirmation on GET. On POST release the permit of the confirmed member, and of no other."""
    parameters = request.POST if request.method == "POST" else request.GET
    fingerprint = parameters.get("member", "")
    form = MemberForm(parameters) if request.method == "POST" else MemberForm(initial={"member": fingerprint})
    if form.is_valid():
        return _perform(admin, request, name, form, release_permit, form.cleaned_data["member"])
    detail = _get_limit(name)
    members = detail.permits.members if detail.permits else ()
    member = next((one for one in members if fingerprint and one.fingerprint == fingerprint), None)
    page = admin.page_url("change", detail.name)
    if member is None:
        text = _("That member of “%(name)s” has no permit any more: there is nothing to release.")
    else:
        text = _(
            "This takes the permit away from %(holder)s. If its process still runs it goes on, so for a while one"
            " more may run than the limit allows."
        )
    return admin.confirm(
        request,
        _("Release this permit?"),
        warning=[text % {"name": detail.name, "holder": member.holder if member else ""}],
        danger=member is not None,
        chosen=[member_line(member)] if member else [],
        form=form,
        button=_("Release the permit") if member else "",
        back=page,
        breadcrumbs=((detail.name, page),),
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


def _confirm(
    admin: StoreAdmin,
    request: HttpRequest,
    title: str,
    detail: LimitDetail,
    form: LimitReasonForm,
    warning: list[str],
    button: str,
    *,
    danger: bool = False,
) -> HttpResponse:
    """Show the page that asks; or, if no such rate limit is known, that there is nothing to do."""
    view, page = detail.limit, admin.page_url("change", detail.name)
    if view is None or view.usage is None:
        text = _("No rate limit “%(name)s” is known: there is nothing to do.") % {"name": detail.name}
        view, warning, button, danger = None, [text], "", False
    return admin.confirm(
        request,
        title,
        warning=warning,
        danger=danger,
        chosen=[limit_line(view)] if view else [],
        form=form,
        button=button,
        back=page,
        breadcrumbs=((detail.name, page),),
    )


def _get_limit(name: str) -> LimitDetail:
    return call_or_404(get_limit, name)
