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
from django_tasklock.exceptions import BackendUnavailable, TaskLockError
from django_tasklock.operations.locks.detail import find_lock, find_row
from django_tasklock.operations.values import LockDetail, LockState, LockView, Outcome, Result
from django_tasklock.templatetags.tasklock import lock_line


def release(admin: StoreAdmin, request: HttpRequest, name: str) -> HttpResponse:
    """Show the confirmation on GET. On POST release the hold with the confirmed fingerprint, and no other."""
    form: ReleaseForm | None = None
    if request.method == "POST":
        form = ReleaseForm(request.POST, row=call_or_404(find_row, name))
        if form.is_valid():
            return _perform(admin, request, name, form, operations.release_lock, row_state=form.row_state)
    detail = call_or_404(operations.get_lock, name)
    form = form or ReleaseForm(row=detail.row, initial=_initial_data(detail))
    free = _("“%(name)s” is free: there is nothing to release.") % {"name": detail.name}
    title, button = _("Release this lock?"), _("Release the lock")
    return _confirm(admin, request, title, detail, form, _release_warning(detail), button, free, danger=True)


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
    warning = [
        _(
            "The holder sees this at its next heartbeat, and gives the lock back where its code checks whether it still"
            " holds it. The lock is not released."
        )
    ]
    nobody = _("“%(name)s” is free: there is no holder to ask.")
    if detail.lock is not None and detail.lock.dead:
        nobody = _(
            "The process that holds “%(name)s” has ended, so it cannot be asked. Release the lock, or let the sweep"
            " do it."
        )
    title, nobody = _("Ask the holder to give it back?"), nobody % {"name": detail.name}
    return _confirm(admin, request, title, detail, form, warning, _("Ask the holder"), nobody, of_the_dead=False)


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
    locks, changed = _split_unchanged(selected)
    warning = []
    if changed:
        text = _("These changed hands or were given back since you ticked them, and are left alone: %(names)s")
        warning.append(text % {"names": ", ".join(changed)})
    if locks:
        warning.append(
            _(
                "This takes the locks away from their holders. Those whose process has not ended go on running. Guarded"
                " rows are taken from them as well, and put into the state that their guard chooses; where there is no"
                " guarded row, another holder may run beside the old one."
            )
        )
    count = {"count": len(locks)}
    return admin.confirm(
        request,
        ngettext("Release %(count)d lock?", "Release %(count)d locks?", len(locks)) % count,
        warning=warning,
        danger=True,
        chosen=list(map(lock_line, locks)),
        form=form,
        hidden=[
            ("confirm", "yes"),
            *filters.items(),
            *(("lock", f"{lock.info.fingerprint} {lock.info.name}") for lock in locks),
        ],
        button=ngettext("Release %(count)d lock", "Release %(count)d locks", len(locks)) % count if locks else "",
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


def _confirm(
    admin: StoreAdmin,
    request: HttpRequest,
    title: str,
    detail: LockDetail,
    form: AskForm,
    warning: list[str],
    button: str,
    nothing_to_do: str,
    *,
    of_the_dead: bool = True,
    danger: bool = False,
) -> HttpResponse:
    """Show the page that asks; or, if there is no holder to act on, why not."""
    lock, page = detail.lock, admin.page_url("change", detail.name)
    if lock is None or lock.state is LockState.ORPHANED or (lock.dead and not of_the_dead):
        lock, warning, button, danger = None, [nothing_to_do], "", False
    return admin.confirm(
        request,
        title,
        warning=warning,
        danger=danger,
        chosen=[lock_line(lock)] if lock else [],
        form=form,
        button=button,
        back=page,
        breadcrumbs=((detail.name, page),),
    )


def _release_warning(detail: LockDetail) -> list[str]:
    """Return what a release does to the holder and its row."""
    if detail.lock is None:
        return []
    values, row = {"holder": detail.lock.info.holder}, detail.row
    if detail.lock.dead:
        found = [_("This takes the lock away from %(holder)s, whose process has ended.") % values]
    else:
        found = [_("This takes the lock away from %(holder)s, which goes on running.") % values]
    if row is not None and row.exists and row.fenced:
        found.append(_("Its guarded row is taken from it as well: whatever it still writes to that row is refused."))
    elif row is not None and row.exists:
        found.append(
            _(
                "Its guarded row is put into the state below. The row has no token, so the old holder is refused only"
                " while that is another state than the one it works in."
            )
        )
    elif not detail.lock.dead:
        found.append(
            _(
                "No guarded row refuses its writes, so another holder may run beside it. If it is alive, it is safer"
                " to ask it to give the lock back."
            )
        )
    return found


def _initial_data(detail: LockDetail) -> dict[str, str]:
    """Return the form's initial data: the fingerprint of the lease that the page shows."""
    return {"fingerprint": detail.lock.info.fingerprint if detail.lock else ""}


def _failure_message(error: TaskLockError) -> str:
    return _("Nothing was done: %(error)s") % {"error": error}


def _parse_selection(values: list[str]) -> dict[str, str]:
    """Return name -> fingerprint from the values of the checkboxes."""
    selected = {}
    for value in values:
        fingerprint, space, name = value.partition(" ")
        if space and name:
            selected[name] = fingerprint
    return selected


def _split_unchanged(selected: dict[str, str]) -> tuple[list[LockView], list[str]]:
    """Return the locks whose holder is still the selected one, and the names of the others."""
    locks, changed = [], []
    for name, fingerprint in selected.items():
        try:
            view = find_lock(name)
        except BackendUnavailable:
            raise
        except TaskLockError:
            view = None  # an invalid name cannot come from our list
        if view is not None and view.info.fingerprint == fingerprint:
            locks.append(view)
        else:
            changed.append(name)
    return locks, changed


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
    """Yield the messages for several locks; ``not_released``: those left over when the store went down."""
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
