"""The admin of what lies in tables: parked messages, the audit trail, the runs of the sweep. Stock ``ModelAdmin``."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME, ActionForm
from django.core.exceptions import PermissionDenied
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, StreamingHttpResponse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _, gettext_lazy, ngettext

from django_tasklock import operations
from django_tasklock.admin.base import OperatorAdmin, may_view, page_url
from django_tasklock.admin.forms import MAX_REASON_LENGTH, SweepForm
from django_tasklock.backends.database.names import in_ascii, key_of, name_of
from django_tasklock.exceptions import BackendUnavailable, TaskLockError
from django_tasklock.models import Lock, RateLimit
from django_tasklock.operations.audit import LIMIT_ACTIONS
from django_tasklock.operations.datetimes import format_datetime, with_zone
from django_tasklock.operations.durations import format_duration
from django_tasklock.operations.parked.acts import ParkedResult, discard_parked, publish_parked, requeue_parked
from django_tasklock.operations.parked.listing import ParkedQuery, list_parked
from django_tasklock.operations.sweep.options import MAX_SECONDS_IN_REQUEST
from django_tasklock.operations.sweep.report import FindingOutcome, Kind
from django_tasklock.templatetags.tasklock import ACTIONS, MESSAGE_STATES, action, breaks, message_state

MAX_AT_ONCE = 500
"""Messages that one action acts on; each costs a request to the store."""
MAX_KEPT = 20
"""Findings of a sweep among which those without a safe action are shown one by one."""
CSV_COLUMNS = ("at", "actor", "action", "name", "reason", "outcome")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def column(label: Any, value: Callable[[Any], Any], *, ordering: str | None = None) -> Any:
    """Return a column, or a field of the page of one row, that shows ``value(row)``."""

    @admin.display(description=label, ordering=ordering)
    def shown(model_admin: Any, row: Any) -> Any:
        return value(row)

    return shown


def label_filter(label: Any, field: str, labels: Mapping[str, Any]) -> type[admin.SimpleListFilter]:
    """Return a filter by the codes in ``field``, in words."""

    class ByLabel(admin.SimpleListFilter):
        title = label
        parameter_name = field

        def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
            return list(labels.items())

        def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
            return queryset.filter(**{field: self.value()}) if self.value() in labels else queryset

    return ByLabel


class TableAdmin(OperatorAdmin):
    """The base: rows that only the library writes."""

    show_facets = admin.ShowFacets.ALWAYS
    list_per_page = 50

    class Media:
        css: ClassVar = {"all": ["tasklock/admin.css"]}

    def prepare(self, request: HttpRequest, rows: list[Any]) -> list[Any]:
        """Return the rows of a page with what the columns need besides the table."""
        return rows

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        """Return the list of a page, prepared as a whole."""
        found: Any = super().get_changelist_instance(request)
        found.result_list = self.prepare(request, list(found.result_list))
        return found

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Model | None:
        """Return one row, prepared; ``None`` if there is none."""
        found = super().get_object(request, object_id, from_field)
        return next(iter(self.prepare(request, [found])), None) if found is not None else None


class NamedAdmin(TableAdmin):
    """A table of names, which are stored in ASCII, with a hash."""

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Return the rows of a whole name, by its index; if there are none, those with a part of one in a column."""
        exact = queryset.filter(key=key_of(search_term))
        if search_term and exact.exists():
            return exact, False
        found, twice = super().get_search_results(request, queryset, search_term)
        escaped = in_ascii(search_term)
        return found if escaped == search_term else found | queryset.filter(name__icontains=escaped), twice

    def link(self, request: HttpRequest, model: type[Model], name: str) -> SafeString:
        """Return a name, as a link to its page if the user may view that; the name may be stored cut and escaped."""
        shown = breaks(name)
        if not name or "\\" in name or not may_view(self.admin_site, request, model):
            return shown
        return format_html('<a href="{}">{}</a>', page_url(self.admin_site, "change", name, model), shown)


# The audit trail


def full_name(row: Any) -> str:
    """Return the name in an audit entry, unescaped if its column was long enough for it."""
    return name_of(row.name, row.key) or row.name


class _EchoFile:
    """A file for the csv module whose ``write`` returns the text."""

    def write(self, text: str) -> str:
        return text


def csv_lines(rows: QuerySet[Any]) -> Iterator[str]:
    """Yield lines of CSV. A text that a spreadsheet would treat as a formula is prefixed with an apostrophe."""
    writer: Any = csv.writer(_EchoFile())
    yield writer.writerow(CSV_COLUMNS)
    for row in rows.iterator(chunk_size=1000):
        texts = (with_zone(row.at).isoformat(), row.actor, row.action, full_name(row), row.reason, row.outcome)
        yield writer.writerow(f"'{text}" if text.startswith(_FORMULA) else text for text in texts)


@admin.action(description=gettext_lazy("Download the selected as CSV"), permissions=["view"])
def as_csv(model_admin: Any, request: HttpRequest, queryset: QuerySet[Any]) -> StreamingHttpResponse:
    """Return the selected entries as a file, streamed while it is read."""
    response = StreamingHttpResponse(csv_lines(queryset), content_type="text/csv; charset=utf-8")
    response.headers["Content-Disposition"] = 'attachment; filename="tasklock-audit.csv"'
    response.headers["Cache-Control"] = "no-store"
    return response


class AuditAdmin(NamedAdmin):
    """The audit trail. ``tasklock.view_auditentry`` allows viewing; nothing can be changed."""

    view_permission = act_permission = "tasklock.view_auditentry"
    list_display = ("when", "actor", "did", "subject", "reason", "outcome")
    list_filter = ("at", label_filter(gettext_lazy("Action"), "action", ACTIONS))
    search_fields = ("name", "actor", "reason")
    sortable_by = ("when",)
    ordering = ("-pk",)
    list_per_page = 100
    actions = (as_csv,)
    fields = ("when", "actor", "did", "subject", "reason", "outcome")
    readonly_fields = ("when", "did", "subject")

    when = column(gettext_lazy("When"), lambda row: format_datetime(row.at), ordering="at")
    did = column(gettext_lazy("Action"), lambda row: action(row.action))
    subject = column(gettext_lazy("Name"), lambda row: row.subject)

    def prepare(self, request: HttpRequest, rows: list[Any]) -> list[Any]:
        """Add the links to the locks and limiters."""
        for row in rows:
            row.subject = self.link(request, RateLimit if row.action in LIMIT_ACTIONS else Lock, full_name(row))
        return rows


# Parked messages


class ReasonForm(ActionForm):
    """The action, with its reason beside it. An empty one is answered in words by the action."""

    reason = forms.CharField(label=gettext_lazy("Reason"), max_length=MAX_REASON_LENGTH, required=False)


_Operation = Callable[..., ParkedResult]


def _message_action(operation: _Operation, label: Any, warning: Any = None) -> Any:
    """Return an action that calls ``operation`` for each selected message; with ``warning`` it asks first."""

    @admin.action(description=label, permissions=["act"])
    def act(model_admin: ParkedMessageAdmin, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        reason = " ".join(request.POST.get("reason", "").split())
        if not reason:
            model_admin.message_user(request, _("Nothing was done: type a reason beside the action."), messages.WARNING)
            return None
        rows = list(queryset[:MAX_AT_ONCE])
        if warning is None or request.POST.get("confirm") == "yes":
            _act_on(model_admin, request, operation, [row.task_id for row in rows], reason)
            return None
        values = [("action", operation.__name__), ("reason", reason), ("confirm", "yes")]
        return model_admin.confirm(
            request,
            ngettext("Discard %(count)d message?", "Discard %(count)d messages?", len(rows)) % {"count": len(rows)},
            warning=[warning, _("Reason: %(reason)s") % {"reason": reason}],
            danger=True,
            chosen=[f"{row.name}: {row}" for row in rows],
            hidden=[*values, *((ACTION_CHECKBOX_NAME, row.pk) for row in rows)],
            button=label,
            back=request.get_full_path(),
        )

    act.__name__ = operation.__name__
    return act


def _act_on(
    model_admin: ParkedMessageAdmin, request: HttpRequest, operation: _Operation, ids: list[str], reason: str
) -> None:
    by, done = model_admin.actor(request), 0
    for number, task_id in enumerate(ids):
        try:
            result = operation(task_id, by=by, reason=reason)
        except BackendUnavailable:
            left = len(ids) - number
            text = ngettext(
                "The lock store cannot be reached. %(count)d message was left as it was, as far as is known.",
                "The lock store cannot be reached. %(count)d messages were left as they were, as far as is known.",
                left,
            )
            model_admin.message_user(request, text % {"count": left}, messages.ERROR)
            break
        done += bool(result)
        if not result:
            model_admin.message_user(request, str(result), messages.WARNING)
    if done:
        text = ngettext("%(n)d message: done.", "%(n)d messages: done.", done) % {"n": done}
        model_admin.message_user(request, text, messages.SUCCESS)


class ParkedMessageAdmin(NamedAdmin):
    """Parked messages of all locks: list, one, publish, requeue and discard.

    ``tasklock.view_parkedmessage`` allows viewing, ``tasklock.change_parkedmessage`` also acting.
    """

    view_permission = "tasklock.view_parkedmessage"
    act_permission = "tasklock.change_parkedmessage"
    list_display = ("message_task", "lock", "word", "waits", "why")
    list_filter = (label_filter(gettext_lazy("State"), "state", MESSAGE_STATES),)
    search_fields = ("name", "task", "task_id")
    sortable_by = ("waits",)
    ordering = ("pk",)
    action_form = ReasonForm
    actions = (
        _message_action(publish_parked, gettext_lazy("Publish now")),
        _message_action(requeue_parked, gettext_lazy("Let dead ones wait again")),
        _message_action(
            discard_parked,
            gettext_lazy("Discard"),
            gettext_lazy(
                "A message that is discarded never runs. Callers that wait for its result learn that it was revoked."
            ),
        ),
    )
    fields = readonly_fields = (
        "message_task", "message_id", "lock", "word", "why", "since", "waits", "parked_by", "number", "put_back",
        "trouble",
    )  # fmt: skip

    message_task = column(gettext_lazy("Message"), lambda row: breaks(str(row)))
    message_id = column(gettext_lazy("Task id"), lambda row: row.task_id)
    lock = column(gettext_lazy("Lock"), lambda row: row.lock)
    word = column(gettext_lazy("State"), lambda row: message_state(row.view.info.state))
    waits = column(gettext_lazy("Waits for"), lambda row: format_duration(row.view.info.waited), ordering="-pk")
    why = column(gettext_lazy("Why"), lambda row: " ".join(row.view.why))
    since = column(gettext_lazy("Parked at"), lambda row: format_datetime(row.view.info.parked_at))
    parked_by = column(gettext_lazy("Parked by"), lambda row: row.view.info.mode)
    number = column(gettext_lazy("Sequence number"), lambda row: str(row.view.info.number))
    put_back = column(gettext_lazy("Put back without success"), lambda row: row.view.info.attempts)
    trouble = column(gettext_lazy("Problem"), lambda row: row.view.info.problem)

    def prepare(self, request: HttpRequest, rows: list[Any]) -> list[Any]:
        """Add why each waits, and the link to its lock; leave out those that have ended meanwhile."""
        ids = tuple(row.task_id for row in rows)
        page = list_parked(ParkedQuery(ids=ids, limit=len(ids))).messages if ids else ()
        views = {view.info.id: view for view in page}
        rows = [row for row in rows if row.pk in views]
        for row in rows:
            row.view = views[row.pk]
            row.lock = self.link(request, Lock, row.view.info.name)
        return rows


# The runs of the sweep


def count_lines(counts: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Return the numbers of each class of which a sweep found something."""
    text = _(
        "%(what)s: %(found)d found, %(acted)d repaired, %(changed)d no longer so at the second check,"
        " %(kept)d left as they are"
    )
    return [text % {"what": kind.label, **counts[kind]} for kind in Kind if counts.get(kind, {}).get("found")]


def report_lines(report: operations.SweepReport) -> list[str]:
    """Return what a sweep found: the numbers of each class, then one by one, then what is not listed or checked."""
    lines = count_lines(operations.to_plain(report.counts))
    for one in report.findings:
        lines.append(f"{one.name or one.row or one.holder}: {one.kind.label}: {one.came.label}: {one.why}")
    if report.unlisted:
        text = ngettext("%(count)d more is counted above.", "%(count)d more are counted above.", report.unlisted)
        lines.append(text % {"count": report.unlisted})
    return [*lines, *(_("not checked: %(what)s") % {"what": one} for one in report.left_out)]


def _paragraphs(lines: Sequence[str]) -> SafeString:
    return format_html_join("", "<p>{}</p>", ((line,) for line in lines))


class SweepAdmin(TableAdmin):
    """The last runs of the sweep, and a form that starts one.

    ``tasklock.view_lock`` allows viewing, ``tasklock.release_lock`` also sweeping.
    """

    view_permission = "tasklock.view_lock"
    act_permission = "tasklock.release_lock"
    list_display = ("when", "actor", "right", "prefix", "took", "problem")
    list_filter = ("at", "actor")
    sortable_by = ()
    ordering = ("-pk",)
    fields = readonly_fields = ("when", "actor", "right", "prefix", "took", "problem", "found")

    when = column(gettext_lazy("When"), lambda row: format_datetime(row.at))
    right = column(gettext_lazy("Repaired"), lambda row: row.swept)
    prefix = column(gettext_lazy("Prefix"), lambda row: row.scope)
    took = column(gettext_lazy("Duration"), lambda row: format_duration(row.seconds))
    found = column(gettext_lazy("What was found"), lambda row: _paragraphs(count_lines(row.counts)))

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Return whether the user may sweep: that adds a run."""
        return self.has_act_permission(request)

    def add_view(self, request: HttpRequest, form_url: str = "", extra_context: Any = None) -> HttpResponse:
        """Show the form that starts a sweep; on POST sweep. A dry run is reported here, and not recorded."""
        if not self.has_add_permission(request):
            raise PermissionDenied
        form = SweepForm(request.POST if request.method == "POST" else None, auto_id="tasklock-%s")
        report = None
        if form.is_valid():
            report = self._sweep(request, form.cleaned_data)
            if report is None or not report.dry_run:
                number = report and report.number
                page = ("changelist",) if number is None else ("change", str(number))
                return HttpResponseRedirect(self.page_url(*page))
        age = operations.last_sweep_age()
        warning = [
            _(
                "A sweep finds what crashed holders left behind, checks twice, and repairs what both checks found."
                " It takes some seconds, or longer with many locks. Several may run at once."
            ),
            _("No complete sweep is recorded. Run it by beat or cron: see docs/operate.md.")
            if age is None
            else _("The last complete sweep was %(span)s ago.") % {"span": format_duration(age)},
        ]
        chosen = []
        if report is not None:
            warning = [_("Nothing was changed: this is what a sweep would have done just now.")]
            chosen = report_lines(report) or [_("There was nothing to repair.")]
        return self.confirm(
            request,
            _("Sweep"),
            warning=warning,
            form=form,
            chosen=chosen,
            button=_("Sweep"),
            back=self.page_url("changelist"),
        )

    def _sweep(self, request: HttpRequest, given: Mapping[str, Any]) -> operations.SweepReport | None:
        """Sweep, and say how that went; ``None`` if it broke off."""
        by = self.actor(request)
        try:
            report = operations.sweep(
                dry_run=given["dry_run"], prefix=given["begins"], by=by, longest=MAX_SECONDS_IN_REQUEST
            )
        except BackendUnavailable:
            self.message_user(request, _("The lock store cannot be reached: the sweep broke off."), messages.ERROR)
            return None
        except TaskLockError as error:
            self.message_user(request, _("Nothing was done: %(error)s") % {"error": error}, messages.ERROR)
            return None
        if not report.dry_run:
            self.message_user(request, str(report), messages.SUCCESS)
            for finding in report.findings[:MAX_KEPT]:
                if finding.came is FindingOutcome.KEPT:  # no run has it, and the audit trail only what was done
                    self.message_user(request, f"{finding.name or finding.row}: {finding.why}", messages.WARNING)
        return report
