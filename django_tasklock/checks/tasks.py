"""What the project's Celery tasks say, beside what its broker does."""

from __future__ import annotations

from typing import Any

from django.core import checks

from django_tasklock.checks.settings import sound_settings

SHOWN = 5


def check_visibility(app_configs: Any = None, **kwargs: Any) -> list[checks.CheckMessage]:
    """Report W018: a body that runs for as long as it may is delivered again when its lock ends, or before."""
    if sound_settings() is None:
        return []
    from django_tasklock.celery.visibility import reaching_visibility_timeout

    names, seconds = reaching_visibility_timeout()
    if not names:
        return []
    shown = ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
    return [
        checks.Warning(
            f"The broker delivers again what is not acknowledged after {seconds:g} s, its visibility timeout, and these"
            f" late-acknowledged tasks may have their locks for that long or longer: {shown}. A body that is not over"
            " by then may run twice at once.",
            hint="timeout=None on the task: its lock is held until it has ended, and who comes again meets it. Or a"
            " visibility_timeout in broker_transport_options that is longer than every timeout.",
            id="tasklock.W018",
        )
    ]
