"""Release a lock, or request its release: a confirmation page, then the action. Only POST acts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _, ngettext

from django_tasklock import operations
from django_tasklock.admin.base import StoreAdmin, found_or_404
from django_tasklock.admin.forms import AskForm, ReleaseForm, SelectedForm
from django_tasklock.admin.locks.filters import Filters
from django_tasklock.admin.locks.rows import Row, lock_row
from django_tasklock.exceptions import BackendUnavailable, TaskLockError
from django_tasklock.operations.values import LockDetail, Outcome, Result


def release(admin: StoreAdmin, request: HttpRequest, name: str) -> HttpResponse:
    """Show the confirmation on GET. On POST release the hold with the confirmed fingerprint, and no other."""
    form: ReleaseForm | None = None
    if request.method == "POST":
        form = ReleaseForm(request.POST, row=found_or_404(operations.find_row, name))
        if form.is_valid():
            return _act(admin, request, name, form, operations.release_lock, row_state=form.row_state)
    detail = found_or_404(operations.get_lock, name)
    form = form or ReleaseForm(row=detail.row, initial=_shown(detail))
    return _confirm(admin, request, "release", _("Release this lock?"), detail, form)


def ask(admin: StoreAdmin, request: HttpRequest, name: str) -> HttpResponse:
    """Show the confirmation on GET. On POST request the release from the holder."""
    form: AskForm | None = None
    if request.method == "POST":
        form = AskForm(request.POST)
        found_or_404(operations.find_lock, name)
        if form.is_valid():
            return _act(admin, request, name, form, operations.ask_to_release)
    detail = found_or_404(operations.get_lock, name)
    form = form or AskForm(initial=_shown(detail))
    return _confirm(admin, request, "ask", _("Ask the holder to give it back?"), detail, form)


def release_selected(admin: StoreAdmin, request: HttpRequest) -> HttpResponse:
    """Show the confirmation on POST of the list; release on POST of the confirmation. Redirect a GET to the list."""
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


def _act(
    admin: StoreAdmin,
    request: HttpRequest,
    name: str,
    form: AskForm,
    do: Callable[..., Result],
    **more: Any,
) -> HttpResponse:
    """Act on the confirmed hold, and show the result on the lock's page."""
    confirmed = {key: form.cleaned_data[key] for key in ("reason", "fingerprint")}
    try:
        result = do(name, by=admin.actor(request), **confirmed, **more)
    except BackendUnavailable:
        raise
    except TaskLockError as error:  # the row no longer has the chosen state, or there is no holder
        messages.error(request, _not_done(error))
        return HttpResponseRedirect(admin.address("change", name))
    level, text = _sentence(result)
    messages.add_message(request, level, text)
    return HttpResponseRedirect(admin.address("change", result.name))


def _confirm(
    admin: StoreAdmin, request: HttpRequest, template: str, title: str, detail: LockDetail, form: AskForm
) -> HttpResponse:
    """Show the confirmation page with the form that acts."""
    page = admin.address("change", detail.name)
    lock = None if detail.lock is None else lock_row(detail.lock, admin.row_address(request))
    context: dict[str, Any] = {"detail": detail, "lock": lock, "form": form, "lock_url": page}
    return admin.page(request, template, title, trail=((detail.name, page),), **context)


def _shown(detail: LockDetail) -> dict[str, str]:
    """Return the form's initial data: the fingerprint of the lease that the page shows."""
    return {"fingerprint": detail.lock.info.fingerprint if detail.lock else ""}


def _not_done(error: TaskLockError) -> str:
    return _("Nothing was done: %(error)s") % {"error": error}


def _picks(values: list[str]) -> dict[str, str]:
    """Return name -> fingerprint from values like ``Row.pick``."""
    picks = {}
    for value in values:
        fingerprint, space, name = value.partition(" ")
        if space and name:
            picks[name] = fingerprint
    return picks


def _still(admin: StoreAdmin, request: HttpRequest, picks: dict[str, str]) -> tuple[list[Row], list[str]]:
    """Return the locks whose holder is still the selected one, and the names of the others."""
    rows, changed = [], []
    for name, fingerprint in picks.items():
        try:
            view = operations.find_lock(name)
        except BackendUnavailable:
            raise
        except TaskLockError:
            view = None  # an invalid name cannot come from our list
        if view is not None and view.info.fingerprint == fingerprint:
            rows.append(lock_row(view, admin.row_address(request)))
        else:
            changed.append(name)
    return rows, changed


def _release_all(
    admin: StoreAdmin, request: HttpRequest, picks: dict[str, str], reason: str, back: str
) -> HttpResponse:
    results: list[Result] = []
    failed = 0
    for name, fingerprint in picks.items():
        try:
            results.append(
                operations.release_lock(name, by=admin.actor(request), reason=reason, fingerprint=fingerprint)
            )
        except BackendUnavailable:
            break
        except TaskLockError as error:
            messages.error(request, _not_done(error))
            failed += 1
    for level, text in _sentences(results, undone=len(picks) - len(results) - failed):
        messages.add_message(request, level, text)
    return HttpResponseRedirect(back)


def _sentence(result: Result) -> tuple[int, str]:
    """Return the level and the text of the message."""
    name = {"name": result.name}
    if result.outcome is Outcome.RELEASED:
        text = _("The lock “%(name)s” was released.") % name
        if result.fenced:
            text += " " + _("Its row was taken from the old holder, whose writes to it are refused now.")
        return messages.SUCCESS, text
    if result.outcome is Outcome.ASKED:
        return messages.SUCCESS, _(
            "The holder of “%(name)s” was asked to give it back. It sees that at its next heartbeat."
        ) % name
    if result.fenced:  # the row's claim was revoked, but the lock was gone by then
        return messages.WARNING, _(
            "The row of “%(name)s” was taken from the old holder, which had lost the lock meanwhile. No lock was"
            " released."
        ) % name
    if result.outcome is Outcome.CHANGED_HANDS:
        return messages.WARNING, _(
            "Nothing was done: “%(name)s” changed hands since the page was shown. Look at who holds it now."
        ) % name
    return messages.WARNING, _("Nothing was done: “%(name)s” is free already.") % name


def _sentences(results: Iterable[Result], undone: int = 0) -> Iterator[tuple[int, str]]:
    """Yield the messages for several locks; ``undone``: the number left over when the store went down."""
    counts = Counter(result.outcome for result in results)
    if count := counts[Outcome.RELEASED]:
        yield (
            messages.SUCCESS,
            ngettext("%(count)d lock was released.", "%(count)d locks were released.", count) % {"count": count},
        )
    if count := counts[Outcome.CHANGED_HANDS]:
        yield (
            messages.WARNING,
            ngettext(
                "%(count)d lock changed hands since the page was shown, and was left alone.",
                "%(count)d locks changed hands since the page was shown, and were left alone.",
                count,
            )
            % {"count": count},
        )
    if count := counts[Outcome.NOT_HELD]:
        yield (
            messages.WARNING,
            ngettext("%(count)d lock was free already.", "%(count)d locks were free already.", count)
            % {"count": count},
        )
    if undone:
        yield (
            messages.ERROR,
            ngettext(
                "The lock store cannot be reached. %(count)d lock was not released, as far as is known.",
                "The lock store cannot be reached. %(count)d locks were not released, as far as is known.",
                undone,
            )
            % {"count": undone},
        )
