"""The forms for actions on locks, messages and limiters, and for a sweep."""

from __future__ import annotations

from typing import Any

from django import forms
from django.apps import apps
from django.core.exceptions import FieldDoesNotExist
from django.utils.translation import gettext, gettext_lazy as _

from django_tasklock.operations.limits.rates import LONGEST_PAUSE
from django_tasklock.operations.values import RowSide

MAX_REASON_LENGTH = 1000


def _reason_field(*, required: bool, help_text: Any) -> forms.CharField:
    widget = forms.Textarea(attrs={"rows": 2, "class": "tasklock-text"})
    return forms.CharField(
        label=_("Reason"), max_length=MAX_REASON_LENGTH, required=required, widget=widget, help_text=help_text
    )


_KEPT_IN_LOCK_HISTORY = _("Kept in the history of the lock, with your name.")


class AskForm(forms.Form):
    """The fingerprint of the lease, and the reason."""

    fingerprint = forms.CharField(required=False, max_length=64, widget=forms.HiddenInput)
    reason = _reason_field(required=False, help_text=_KEPT_IN_LOCK_HISTORY)


class ReleaseForm(AskForm):
    """An ``AskForm`` with a required reason and, for a guarded row, the state to leave it in."""

    reason = _reason_field(required=True, help_text=_KEPT_IN_LOCK_HISTORY)

    def __init__(self, *args: Any, row: RowSide | None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._states: dict[str, Any] = {}
        if row is None or not row.exists or not row.states:
            return
        self._states = {str(state): state for state in row.states}
        choices = list(zip(self._states, _state_labels(row, self._states), strict=True))
        self.fields["row_state"] = forms.ChoiceField(
            label=_("State of the row"),
            choices=choices,
            required=False,
            help_text=_(
                "The state that the row gets when it is taken from the old holder. The first one is the default of"
                " its guard."
            ),
        )

    @property
    def row_state(self) -> Any:
        """The state with the type that the guard has; ``None``: the guard's default."""
        return self._states.get(self.cleaned_data.get("row_state", ""))


class SelectedForm(forms.Form):
    """The reason for releasing several locks."""

    reason = _reason_field(required=True, help_text=_KEPT_IN_LOCK_HISTORY)


class SweepForm(forms.Form):
    """The options of a sweep."""

    dry_run = forms.BooleanField(
        label=_("Dry run"),
        required=False,
        initial=True,
        help_text=_("Reports what would be repaired, and changes nothing."),
    )
    begins = forms.CharField(
        label=_("Only names that begin with"),
        required=False,
        max_length=200,
        widget=forms.TextInput(attrs={"autocapitalize": "off", "spellcheck": "false"}),
    )


_KEPT_IN_LIMIT_HISTORY = _("Kept in the history of the limiter, with your name.")


class LimitReasonForm(forms.Form):
    """The reason for an action on a limiter."""

    reason = _reason_field(required=True, help_text=_KEPT_IN_LIMIT_HISTORY)


class MemberForm(LimitReasonForm):
    """The fingerprint of the member whose permit to release, and the reason."""

    member = forms.CharField(required=False, max_length=64, widget=forms.HiddenInput)


class ShareForm(LimitReasonForm):
    """The share of the limit to enforce, and the reason."""

    percent = forms.FloatField(
        label=_("Limit in force, in per cent"),
        min_value=0.0001,
        max_value=100,
        widget=forms.NumberInput(attrs={"step": "any"}),
        help_text=_("A share of the limit that its callers set; 100 at most."),
    )
    field_order = ("percent", "reason")

    @property
    def share(self) -> float:
        """The share as a fraction, for ``operations``."""
        return min(1.0, float(self.cleaned_data["percent"]) / 100)


class PauseForm(LimitReasonForm):
    """The length of the pause, and the reason."""

    minutes = forms.FloatField(
        label=_("Minutes"),
        min_value=0.1,
        max_value=LONGEST_PAUSE / 60,
        initial=10,
        widget=forms.NumberInput(attrs={"step": "any"}),
        help_text=_("From now on, instead of any other pause; a week at most."),
    )
    field_order = ("minutes", "reason")

    @property
    def seconds(self) -> float:
        """The length of the pause in seconds, for ``operations``."""
        return float(self.cleaned_data["minutes"]) * 60


def _state_labels(row: RowSide, states: dict[str, Any]) -> list[str]:
    try:
        field = apps.get_model(row.ref.model)._meta.get_field(row.field)
        choices = dict(getattr(field, "flatchoices", ()))
    except (LookupError, ValueError, FieldDoesNotExist):
        choices = {}
    labels = []
    for text, state in states.items():
        label = str(choices.get(state, text))
        labels.append(text if label == text else gettext("%(label)s (%(value)s)") % {"label": label, "value": text})
    return labels
