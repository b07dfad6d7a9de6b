"""Releasing, and asking for it: a page that says what would happen, then the act. Only POST acts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _, ngettext

from django_tasklock import operations
from django_tasklock.admin.forms import AskForm, ReleaseForm, SelectedForm
from django_tasklock.admin.locks.detail import find
from django_tasklock.admin.locks.filters import Filters
from django_tasklock.admin.locks.outcomes import sentence, sentences
from django_tasklock.admin.locks.rows import Row, lock_row
from django_tasklock.exceptions import BackendUnavailable, TaskLockError
from django_tasklock.operations.values import Result

if TYPE_CHECKING:
    from django_tasklock.admin.locks.admin import LockAdmin

T = TypeVar("T")

__all__ = ["ask", "release", "release_selected"]


def release(admin: LockAdmin, request: HttpRequest, name: str) -> HttpResponse:
    """GET confirms. POST releases the hold with the fingerprint that was confirmed, and no other."""
    form: ReleaseForm | None = None
    if request.method == "POST":
        form = ReleaseForm(request.POST, row=_known(operations.find_row, name))
        if form.is_valid():
            try:
                result = operations.release_lock(
                    name,
                    by=admin.actor(request),
                    reason=form.cleaned_data["reason"],
                    fingerprint=form.cleaned_data["fingerprint"],
                    row_state=form.row_state,
                )
            except BackendUnavailable:
                raise
            except TaskLockError as error:  # the state that was chosen is no state of this row any more
                messages.error(request, _not_done(error))
                return HttpResponseRedirect(admin.address("change", name))
            return _done(admin, request, result)
    detail = find(name)
    lock = None if detail.lock is None else lock_row(detail.lock, admin.row_address(request))
    form = form or ReleaseForm(row=detail.row, initial={"fingerprint": lock.fingerprint if lock else ""})
    return admin.page(
        request,
        "release",
        _("Release this lock?"),
        trail=((detail.name, admin.address("change", detail.name)),),
        detail=detail,
        lock=lock,
        form=form,
        lock_url=admin.address("change", detail.name),
    )


def ask(admin: LockAdmin, request: HttpRequest, name: str) -> HttpResponse:
    """GET confirms. POST notes on the lock that its holder should give it back."""
    form: AskForm | None = None
    if request.method == "POST":
        form = AskForm(request.POST)
        _known(operations.find_lock, name)
        if form.is_valid():
            try:
                result = operations.ask_to_release(
                    name,
                    by=admin.actor(request),
                    reason=form.cleaned_data["reason"],
                    fingerprint=form.cleaned_data["fingerprint"],
                )
            except BackendUnavailable:
                raise
            except TaskLockError as error:  # put there by hand, or its process has ended: there is no holder
                messages.error(request, _not_done(error))
                return HttpResponseRedirect(admin.address("change", name))
            return _done(admin, request, result)
    detail = find(name)
    lock = None if detail.lock is None else lock_row(detail.lock, admin.row_address(request))
    form = form or AskForm(initial={"fingerprint": lock.fingerprint if lock else ""})
    return admin.page(
        request,
        "ask",
        _("Ask the holder to give it back?"),
        trail=((detail.name, admin.address("change", detail.name)),),
        detail=detail,
        lock=lock,
        form=form,
        lock_url=admin.address("change", detail.name),
    )


def release_selected(admin: LockAdmin, request: HttpRequest) -> HttpResponse:
    """POST of the list confirms; POST of the confirmation releases. GET has nothing to confirm: back to the list."""
    back = admin.address("changelist")
    if request.method != "POST":
        return HttpResponseRedirect(back)
    filters = Filters.read(request.POST)
    back = (back + filters.address(start=filters.start)).rstrip("?")
    picks = _picks(request.POST.getlist("lock")[: admin.list_per_page])
    if not picks:
        messages.warning(request, _("No lock was selected."))
        return HttpResponseRedirect(back)
    confirmed = request.POST.get("confirm") == "yes"
    form = SelectedForm(request.POST if confirmed else None)
    if confirmed and form.is_valid():
        return _release_all(admin, request, picks, form.cleaned_data["reason"], back)
    rows, changed = _still(admin, request, picks)
    return admin.page(
        request,
        "release_selected",
        ngettext("Release %(count)d lock?", "Release %(count)d locks?", len(rows)) % {"count": len(rows)},
        rows=rows,
        changed=changed,
        form=form,
        filters=filters,
        back=back,
    )


def _known(look: Callable[[str], T], name: str) -> T:
    """What ``look`` finds; 404 for what cannot be a name."""
    try:
        return look(name)
    except BackendUnavailable:
        raise
    except TaskLockError as error:
        raise Http404(str(error)) from error


def _done(admin: LockAdmin, request: HttpRequest, result: Result) -> HttpResponse:
    level, text = sentence(result)
    messages.add_message(request, level, text)
    return HttpResponseRedirect(admin.address("change", result.name))


def _not_done(error: TaskLockError) -> str:
    return _("Nothing was done: %(error)s") % {"error": error}


def _picks(values: list[str]) -> dict[str, str]:
    """Name to fingerprint, as ``Row.pick`` has them."""
    picks = {}
    for value in values:
        fingerprint, space, name = value.partition(" ")
        if space and name:
            picks[name] = fingerprint
    return picks


def _still(admin: LockAdmin, request: HttpRequest, picks: dict[str, str]) -> tuple[list[Row], list[str]]:
    """Those that are held as they were when they were ticked, and the names of the others."""
    rows, changed = [], []
    for name, fingerprint in picks.items():
        try:
            view = operations.find_lock(name)
        except BackendUnavailable:
            raise
        except TaskLockError:
            view = None  # nobody ticked that: it cannot be a name
        if view is not None and view.info.fingerprint == fingerprint:
            rows.append(lock_row(view, admin.row_address(request)))
        else:
            changed.append(name)
    return rows, changed


def _release_all(admin: LockAdmin, request: HttpRequest, picks: dict[str, str], reason: str, back: str) -> HttpResponse:
    results: list[Result] = []
    failed = 0
    for name, fingerprint in picks.items():
        try:
            results.append(
                operations.release_lock(name, by=admin.actor(request), reason=reason, fingerprint=fingerprint)
            )
        except BackendUnavailable:
            break  # what was done is said, and what was not
        except TaskLockError as error:
            messages.error(request, _not_done(error))
            failed += 1
    for level, text in sentences(results, undone=len(picks) - len(results) - failed):
        messages.add_message(request, level, text)
    return HttpResponseRedirect(back)
