"""The filters of the audit page."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from typing import Any

from django import forms
from django.utils.timezone import get_current_timezone
from django.utils.translation import gettext_lazy as _

from django_tasklock.admin.labels import action_labels
from django_tasklock.operations.trail import ActQuery


def _date_field(label: Any) -> forms.DateField:
    widget = forms.DateInput(format="%Y-%m-%d", attrs={"type": "date"})
    return forms.DateField(label=label, required=False, widget=widget, input_formats=["%Y-%m-%d"])


def _action_choices() -> list[tuple[str, Any]]:
    return [("", _("anything")), *action_labels().items()]


class AuditForm(forms.Form):
    """The filters: actor, action, name and days. An invalid value is reported, and does not filter."""

    who = forms.CharField(label=_("Who"), required=False, max_length=255, strip=True)
    what = forms.ChoiceField(label=_("Action"), required=False, choices=_action_choices)
    name = forms.CharField(label=_("Name"), required=False, max_length=255, strip=True)
    since = _date_field(_("From"))
    until = _date_field(_("Up to and including"))

    def __init__(self, data: Any) -> None:
        super().__init__(data, auto_id="tasklock-%s")

    @property
    def query(self) -> ActQuery:
        """The filter for ``operations``."""
        self.full_clean()
        found = self.cleaned_data
        until = found.get("until")
        return ActQuery(
            actor=found.get("who", ""),
            action=found.get("what", ""),
            name=found.get("name", ""),
            since=_start_of_day(found.get("since")),
            before=None if until is None else _start_of_day(min(until, _LAST) + timedelta(days=1)),
        )

    def parameters(self) -> dict[str, str]:
        """Return the given values for a query string."""
        given = {name: str(self.data.get(name, "")).strip() for name in self.fields}
        return {name: text for name, text in given.items() if text}


_FIRST, _LAST = date(2, 1, 1), date(9990, 1, 1)  # between them, midnight exists in every time zone


def _start_of_day(day: date | None) -> datetime | None:
    """Return the start of a day in the active time zone."""
    return None if day is None else datetime.combine(max(day, _FIRST), time.min, get_current_timezone())
