"""The filters of the audit page."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from typing import Any

from django import forms
from django.utils.timezone import get_current_timezone
from django.utils.translation import gettext_lazy as _

from django_tasklock.admin.words import act_words
from django_tasklock.operations.trail import ActQuery


def _day(label: Any) -> forms.DateField:
    widget = forms.DateInput(format="%Y-%m-%d", attrs={"type": "date"})
    return forms.DateField(label=label, required=False, widget=widget, input_formats=["%Y-%m-%d"])


def _actions() -> list[tuple[str, Any]]:
    return [("", _("anything")), *act_words().items()]


class AuditForm(forms.Form):
    """Who, what, when and to which name. What is wrong is said, and does not narrow."""

    who = forms.CharField(label=_("Who"), required=False, max_length=255, strip=True)
    what = forms.ChoiceField(label=_("Did what"), required=False, choices=_actions)
    name = forms.CharField(label=_("Name"), required=False, max_length=255, strip=True)
    since = _day(_("From"))
    until = _day(_("Up to and including"))

    def __init__(self, data: Any) -> None:
        super().__init__(data, auto_id="tasklock-%s")

    @property
    def query(self) -> ActQuery:
        """As ``operations`` wants it."""
        self.full_clean()
        found = self.cleaned_data
        until = found.get("until")
        return ActQuery(
            actor=found.get("who", ""),
            action=found.get("what", ""),
            name=found.get("name", ""),
            since=_start_of(found.get("since")),
            before=None if until is None else _start_of(min(until, _LAST) + timedelta(days=1)),
        )

    def words(self) -> dict[str, str]:
        """Return what was asked for, for an address."""
        given = {name: str(self.data.get(name, "")).strip() for name in self.fields}
        return {name: text for name, text in given.items() if text}


_FIRST, _LAST = date(2, 1, 1), date(9990, 1, 1)  # between them every zone can say when a day begins


def _start_of(day: date | None) -> datetime | None:
    """Return when a day begins where the reader is."""
    return None if day is None else datetime.combine(max(day, _FIRST), time.min, get_current_timezone())
