"""Durations as text."""

from __future__ import annotations

from django.utils.translation import gettext as _

MINUTE, HOUR, DAY = 60, 3600, 86400


def format_duration(seconds: float) -> str:
    """Return the duration in the active language, in its two largest units: ``2 h 4 min``."""
    whole = max(0, int(seconds))
    if whole < MINUTE:
        return _("%(s)d s") % {"s": whole}
    if whole < HOUR:
        return _("%(m)d min %(s)d s") % {"m": whole // MINUTE, "s": whole % MINUTE}
    if whole < DAY:
        return _("%(h)d h %(m)d min") % {"h": whole // HOUR, "m": whole % HOUR // MINUTE}
    return _("%(d)d d %(h)d h") % {"d": whole // DAY, "h": whole % DAY // HOUR}


def format_wait(seconds: float) -> str:
    """Return how long a call would wait, in the active language."""
    return format_duration(seconds) if seconds >= 1 else _("less than a second")
