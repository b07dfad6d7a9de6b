"""Release a lock, or request its release: a confirmation page, then the action. Only POST acts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _, ngettext

from django_tasklock import operations
from django_tasklock.admin.base import StoreAdmin, call_or_404
from django_tasklock.admin.forms import AskForm, ReleaseForm, SelectedForm
from django_tasklock.admin.locks.filters import Filters
from django_tasklock.admin.locks.rows import LockRow, lock_row
from django_tasklock.exceptions import BackendUnavailable, TaskLockError
from django_tasklock.operations.locks.detail import find_lock, find_row
from django_tasklock.operations.values import LockDetail, Outcome, Result


def release(admin: StoreAdmin, request: HttpRequest, name: str) -> HttpResponse:
    """Show the confirmation on GET. On POST release the hold with the confirmed fingerprint, and no other."""
    form: ReleaseForm | None = None
    if request.method == "POST":
        form = ReleaseForm(request.POST, row=call_or_404(find_row, name))
        if form.is_valid():
            return _perform(admin, request, name, form, operations.release_lock, row_state=form.row_state)
    detail = call_or_404(operations.get_lock, name)
    form = form or ReleaseForm(row=detail.row, initial=_initial_data(detail))
    return _render_confirmation(admin, request, "release", _("Release this lock?"), detail, form)


def ask(admin: StoreAdmin, request: HttpRequest, name: str) -> HttpResponse:
    """Show the confirmation on GET. On POST request the release from the holder."""
    form: AskForm | None = None
    if request.method == "POST":
        form = AskForm(request.POST)
        call_or_404(find_lock, name)
        if form.is_valid():
            return _perform(admin, request, name, form, operations.ask_release)
    detail = call_or_404(operations.get_lock, name)
    form = form or AskForm(initial=_initial_data(detail))
    return _render_confirmation(admin, request, "ask", _("Ask the holder to give it back?"), detail, form)


def release_selected(admin: StoreAdmin, request: HttpRequest) -> HttpResponse:
    """Show the confirmation on POST of the list; release on POST of the confirmation. Redirect a GET to the list."""
    back = admin.page_url("changelist")
    if request.method != "POST":
        return HttpResponseRedirect(back)
    filters = Filters.read(request.POST)
    back = (back + filters.to_query_string(start=filters.start)).rstrip("?")
    selected = _parse_selection(request.POST.getlist("lock")[: admin.list_per_page])
    if not selected:
        messages.warning(request, _("No lock was selected."))
        return HttpResponseRedirect(back)
    confirmed = request.POST.get("confirm") == "yes"
    form = SelectedForm(request.POST if confirmed else None)
    if confirmed and form.is_valid():
        return _release_selected(admin, request, selected, form.cleaned_data["reason"], back)
    rows, changed = _split_unchanged(admin, request, selected)
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


def _perform(
    admin: StoreAdmin,
    request: HttpRequest,
    name: str,
    form: AskForm,
    operation: Callable[..., Result],
    **more: Any,
) -> HttpResponse:
    """Act on the confirmed hold, and show the result on the lock's page."""
    confirmed = {key: form.cleaned_data[key] for key in ("reason", "fingerprint")}
    try:
        result = operation(name, by=admin.actor(request), **confirmed, **more)
    except BackendUnavailable:
        raise
    except TaskLockError as error:  # the row no longer has the chosen state, or there is no holder
        messages.error(request, _failure_message(error))
        return HttpResponseRedirect(admin.page_url("change", name))
    messages.add_message(request, messages.SUCCESS if result else messages.WARNING, str(result))
    return HttpResponseRedirect(admin.page_url("change", result.name))


def _render_confirmation(
    admin: StoreAdmin, request: HttpRequest, template: str, title: str, detail: LockDetail, form: AskForm
) -> HttpResponse:
    """Show the confirmation page with the form that acts."""
    page = admin.page_url("change", detail.name)
    lock = None if detail.lock is None else lock_row(detail.lock, admin.row_url_getter(request))
    context: dict[str, Any] = {"detail": detail, "lock": lock, "form": form, "lock_url": page}
    return admin.page(request, template, title, breadcrumbs=((detail.name, page),), **context)


def _initial_data(detail: LockDetail) -> dict[str, str]:
    """Return the form's initial data: the fingerprint of the lease that the page shows."""
    return {"fingerprint": detail.lock.info.fingerprint if detail.lock else ""}


def _failure_message(error: TaskLockError) -> str:
    return _("Nothing was done: %(error)s") % {"error": error}


def _parse_selection(values: list[str]) -> dict[str, str]:
    """Return name -> fingerprint from values like ``LockRow.checkbox_value``."""
    selected = {}
    for value in values:
        fingerprint, space, name = value.partition(" ")
        if space and name:
            selected[name] = fingerprint
    return selected


def _split_unchanged(
    admin: StoreAdmin, request: HttpRequest, selected: dict[str, str]
) -> tuple[list[LockRow], list[str]]:
    """Return the locks whose holder is still the selected one, and the names of the others."""
    rows, changed = [], []
    for name, fingerprint in selected.items():
        try:
            view = find_lock(name)
        except BackendUnavailable:
            raise
        except TaskLockError:
            view = None  # an invalid name cannot come from our list
        if view is not None and view.info.fingerprint == fingerprint:
            rows.append(lock_row(view, admin.row_url_getter(request)))
        else:
            changed.append(name)
    return rows, changed


def _release_selected(
    admin: StoreAdmin, request: HttpRequest, selected: dict[str, str], reason: str, back: str
) -> HttpResponse:
    results: list[Result] = []
    failed = 0
    for name, fingerprint in selected.items():
        try:
            results.append(
                operations.release_lock(name, by=admin.actor(request), reason=reason, fingerprint=fingerprint)
            )
        except BackendUnavailable:
            break
        except TaskLockError as error:
            messages.error(request, _failure_message(error))
            failed += 1
    for level, text in _summary_messages(results, not_released=len(selected) - len(results) - failed):
        messages.add_message(request, level, text)
    return HttpResponseRedirect(back)


def _summary_messages(results: Iterable[Result], not_released: int = 0) -> Iterator[tuple[int, str]]:
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
    if not_released:
        yield (
            messages.ERROR,
            ngettext(
                "The lock store cannot be reached. %(count)d lock was not released, as far as is known.",
                "The lock store cannot be reached. %(count)d locks were not released, as far as is known.",
                not_released,
            )
            % {"count": not_released},
        )
