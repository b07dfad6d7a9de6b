"""What is asked before a lock is released, its holder asked to give it back, or a limiter changed."""

from __future__ import annotations

from typing import Any

from django import forms
from django.apps import apps
from django.core.exceptions import FieldDoesNotExist
from django.utils.translation import gettext, gettext_lazy as _

from django_tasklock.operations.limits.rates import LONGEST_PAUSE
from django_tasklock.operations.values import RowSide

REASON = 1000


def _reason(*, required: bool, help_text: Any) -> forms.CharField:
    widget = forms.Textarea(attrs={"rows": 2, "class": "tasklock-text"})
    return forms.CharField(label=_("Reason"), max_length=REASON, required=required, widget=widget, help_text=help_text)


_KEPT = _("Kept in the history of the lock, with your name.")


class AskForm(forms.Form):
    """The lease that is meant, by its fingerprint, and the reason."""

    fingerprint = forms.CharField(required=False, max_length=64, widget=forms.HiddenInput)
    reason = _reason(required=False, help_text=_KEPT)


class ReleaseForm(AskForm):
    """An ``AskForm`` whose reason is required and which asks, for a guarded row, what state to leave it in."""

    reason = _reason(required=True, help_text=_KEPT)

    def __init__(self, *args: Any, row: RowSide | None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._states: dict[str, Any] = {}
        if row is None or not row.exists or not row.states:
            return
        self._states = {str(state): state for state in row.states}
        choices = list(zip(self._states, _labels(row, self._states), strict=True))
        self.fields["row_state"] = forms.ChoiceField(
            label=_("State of the row"),
            choices=choices,
            required=False,
            help_text=_("What the row is left in when it is taken from the old holder. First: its guard's choice."),
        )

    @property
    def row_state(self) -> Any:
        """The state as the guard has it; ``None``: the guard's own choice."""
        return self._states.get(self.cleaned_data.get("row_state", ""))


class SelectedForm(forms.Form):
    """The reason for releasing several locks."""

    reason = _reason(required=True, help_text=_KEPT)


class ParkedForm(forms.Form):
    """Why messages are published, requeued or discarded."""

    reason = _reason(required=True, help_text=_("Kept in the audit trail, with your name."))


class SweepForm(forms.Form):
    """How far a sweep goes, and why it is started."""

    dry_run = forms.BooleanField(
        label=_("Only look"),
        required=False,
        initial=True,
        help_text=_("Says what would be put right, and changes nothing."),
    )
    begins = forms.CharField(
        label=_("Only names that begin with"),
        required=False,
        max_length=200,
        widget=forms.TextInput(attrs={"autocapitalize": "off", "spellcheck": "false"}),
    )


_KEPT_OF_LIMIT = _("Kept in the history of the limiter, with your name.")


class LimitReasonForm(forms.Form):
    """The reason for an act on a limiter."""

    reason = _reason(required=True, help_text=_KEPT_OF_LIMIT)


class MemberForm(LimitReasonForm):
    """The fingerprint of the member that loses its permit, and why."""

    member = forms.CharField(required=False, max_length=64, widget=forms.HiddenInput)


class ShareForm(LimitReasonForm):
    """How much of the limit is to be in force, and why."""

    percent = forms.FloatField(
        label=_("Limit in force, in per cent"),
        min_value=0.0001,
        max_value=100,
        widget=forms.NumberInput(attrs={"step": "any"}),
        help_text=_("Of the limit that its callers have; 100 is all of it, and more cannot be."),
    )
    field_order = ("percent", "reason")

    @property
    def share(self) -> float:
        """As ``operations`` wants it."""
        return min(1.0, float(self.cleaned_data["percent"]) / 100)


class PauseForm(LimitReasonForm):
    """For how long nobody is to go, and why."""

    minutes = forms.FloatField(
        label=_("Minutes"),
        min_value=0.1,
        max_value=LONGEST_PAUSE / 60,
        initial=10,
        widget=forms.NumberInput(attrs={"step": "any"}),
        help_text=_("From now on, in place of any other pause; a week at most."),
    )
    field_order = ("minutes", "reason")

    @property
    def seconds(self) -> float:
        """As ``operations`` wants it."""
        return float(self.cleaned_data["minutes"]) * 60


def _labels(row: RowSide, states: dict[str, Any]) -> list[str]:
    try:
        field = apps.get_model(row.ref.model)._meta.get_field(row.field)
        named = dict(getattr(field, "flatchoices", ()))
    except (LookupError, ValueError, FieldDoesNotExist):
        named = {}
    labels = []
    for text, state in states.items():
        label = str(named.get(state, text))
        labels.append(text if label == text else gettext("%(label)s (%(value)s)") % {"label": label, "value": text})
    return labels
