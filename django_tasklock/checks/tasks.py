"""Checks of the project's tasks, and of its other functions with locks."""

from __future__ import annotations

from typing import Any

from django.core import checks

from django_tasklock.celery.messages.report import lease_lengths
from django_tasklock.celery.task_modules import import_task_modules
from django_tasklock.celery.visibility import acknowledged_early, reaching_visibility_timeout
from django_tasklock.checks.settings import valid_settings
from django_tasklock.conf import milliseconds
from django_tasklock.decorators.locks import undecided

MAX_NAMES = 5


def check_message_lease(app_configs: Any = None, **kwargs: Any) -> list[checks.CheckMessage]:
    """Report E007: leases of messages that are too short to be renewed. W019: longer than needed."""
    settings = valid_settings()
    if settings is None or settings.MESSAGE_LEASE is None:
        return []
    found = lease_lengths()
    if found is None:
        return []
    where = "TASKLOCK['MESSAGE_LEASE']" if found.own is None else "The visibility_timeout in broker_transport_options"
    messages: list[checks.CheckMessage] = []
    if found.lease < found.shortest:
        messages.append(
            checks.Error(
                f"{where} is {found.lease:g} s, shorter than three renewals: a living worker's messages are delivered"
                " again.",
                hint=f"Take {found.shortest:g} s or more; 60 is right for most.",
                id="tasklock.E007",
            )
        )
    wanted = milliseconds(settings.MESSAGE_LEASE, "MESSAGE_LEASE") / 1000
    if found.own is not None and found.own > wanted:
        messages.append(
            checks.Warning(
                f"{where} is {found.own:g} s: for so long a dead worker's messages wait until they start again.",
                hint=f"Remove it: it is TASKLOCK['MESSAGE_LEASE'], {wanted:g} s, then. What a living worker has is"
                " renewed, however long it takes.",
                id="tasklock.W019",
            )
        )
    return messages


def check_visibility(app_configs: Any = None, **kwargs: Any) -> list[checks.CheckMessage]:
    """Report W018: a body that uses its whole timeout may be delivered again while it runs."""
    if valid_settings() is None:
        return []
    names, seconds = reaching_visibility_timeout()
    if not names:
        return []
    return [
        checks.Warning(
            f"The broker delivers again what is not acknowledged after {seconds:g} s, its visibility timeout, and these"
            f" late-acknowledged tasks may have their locks for that long or longer: {_join_names(names)}. A body"
            " that is not over by then may run twice at once.",
            hint="timeout=None on the task: its lock is held until the body has ended, and the second delivery finds it"
            " busy. Or a visibility_timeout in broker_transport_options that is longer than every timeout.",
            id="tasklock.W018",
        )
    ]


def check_late_acknowledgement(app_configs: Any = None, **kwargs: Any) -> list[checks.CheckMessage]:
    """Report W021: tasks with locks that do not start again if their process dies."""
    if valid_settings() is None:
        return []
    names = acknowledged_early()
    if not names:
        return []
    return [
        checks.Warning(
            "The broker deletes the messages of these tasks when they begin, or when their process dies. A task that is"
            " killed does not start again, its result says STARTED or FAILURE, and its guarded row waits for the"
            f" sweep: {_join_names(names)}.",
            hint="acks_late=True and reject_on_worker_lost=True, both, on the task, or task_acks_late and"
            " task_reject_on_worker_lost in the settings.",
            id="tasklock.W021",
        )
    ]


def check_unguarded(app_configs: Any = None, **kwargs: Any) -> list[checks.CheckMessage]:
    """Report W015: functions that run without their lock while the store is down, without an explicit option."""
    settings = valid_settings()
    if settings is None or settings.ON_UNAVAILABLE != "run":
        return []
    import_task_modules()  # W017 reports failed imports
    names = undecided()
    if not names:
        return []
    return [
        checks.Warning(
            "While the store is down these run without their lock, maybe twice at once, and no row judges:"
            f" {_join_names(names)}.",
            hint="Say on each what is right for it: on_unavailable='raise', 'skip', or 'run' where twice does no harm;"
            " or guard the row with model_lock.",
            id="tasklock.W015",
        )
    ]


def _join_names(names: list[str]) -> str:
    return ", ".join(names[:MAX_NAMES]) + (f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else "")
