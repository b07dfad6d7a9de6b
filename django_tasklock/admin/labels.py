"""Labels of actions and of the states of parked messages, in the active language."""

from __future__ import annotations

from django.utils.translation import gettext as _


def action_labels() -> dict[str, str]:
    """Return the labels of the actions in the audit trail, by code."""
    return {
        "release": _("released it"),
        "ask": _("asked for it"),
        "sweep": _("swept it"),
        "requeue": _("let a parked message wait again"),
        "publish": _("published a parked message"),
        "discard": _("discarded a parked message"),
        "reset_limit": _("reset it"),
        "change_limit": _("changed its limit"),
        "pause_limit": _("paused it"),
        "resume_limit": _("ended its pause"),
        "release_permit": _("released a permit"),
    }


def action_label(code: str) -> str:
    """Return the label of an action; its code if it is unknown, as it comes from a later version."""
    return action_labels().get(code, code)


def parked_labels() -> dict[str, str]:
    """Return the labels of the states of parked messages, by code."""
    return {
        "parked": _("parked"),
        "promoted": _("on its way"),
        "running": _("running"),
        "superseded": _("superseded"),
        "ended": _("over"),
        "dead": _("dead"),
    }


def parked_label(code: str) -> str:
    """Return the label of a state; its code if it is unknown."""
    return parked_labels().get(code, code)
