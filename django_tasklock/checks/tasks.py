"""Checks of the project's tasks, and of its other functions with locks."""

from __future__ import annotations

from typing import Any

from django.core import checks

from django_tasklock.celery.broker import message_lease, visibility_timeout
from django_tasklock.celery.definition import lock_of
from django_tasklock.celery.messages.marks import project_app, project_lease
from django_tasklock.celery.task import OnceTask
from django_tasklock.celery.task_modules import import_task_modules
from django_tasklock.checks.settings import valid_settings
from django_tasklock.conf import DEFAULT, UNTIL_RELEASED, spans
from django_tasklock.decorators.locks import undecided
from django_tasklock.guards.guard import registered

MAX_NAMES = 5
SHORTEST_LEASE = 3.0
"""The shortest lease of messages, in seconds, in which some renewals may be slow, or fail."""


def check_message_lease(app_configs: Any = None, **kwargs: Any) -> list[checks.CheckMessage]:
    """Report E007: leases of messages that are too short to be renewed."""
    lease = None if valid_settings() is None else project_lease()
    if lease is None or lease >= SHORTEST_LEASE:
        return []
    return [
        checks.Error(
            f"The lease of messages is {lease:g} s (TASKLOCK['MESSAGE_LEASE'], or the visibility_timeout in"
            " broker_transport_options if that is shorter), so short that one slow answer of the broker delivers a"
            " living worker's messages again.",
            hint=f"Take {SHORTEST_LEASE:g} s or more for both; 60 is right for most.",
            id="tasklock.E007",
        )
    ]


def check_visibility(app_configs: Any = None, **kwargs: Any) -> list[checks.CheckMessage]:
    """Report W018: a body that outlives its lock may run twice at once, or is killed where messages have leases."""
    if valid_settings() is None:
        return []
    import_task_modules()
    app = project_app()
    if app is None:
        return []
    late = [task for task in app.tasks.values() if task.acks_late]
    lease, seconds = message_lease(app), visibility_timeout(app)
    if lease is None:
        names = sorted(task.name for task in late if seconds <= _lock_timeout(task))
        problem = (
            f"The broker delivers again what is not acknowledged after {seconds:g} s, its visibility timeout, and these"
            f" late-acknowledged tasks may have their locks for that long or longer: {_join_names(names)}. A body"
            " that is not over by then may run twice at once."
        )
        hint = (
            "timeout=None on the task: its lock is held until the body has ended, and the second delivery finds it"
            " busy. Or a visibility_timeout in broker_transport_options that is longer than every timeout."
        )
    else:
        names = sorted(task.name for task in late if 0 < _lock_timeout(task) < _time_limit(task))
        problem = (
            f"By their time limits these tasks may run for longer than their timeout=: {_join_names(names)}. A process"
            f" that still runs one {lease:g} s after its lock has ended is killed, and the task starts again."
        )
        hint = (
            "timeout=None on the task: its lock is held until the body has ended. Or one that is over its time limit."
        )
    return [checks.Warning(problem, hint=hint, id="tasklock.W018")] if names else []


def _time_limit(task: Any) -> float:
    """Return the seconds after which Celery ends a task, or asks it to end; 0: it does not."""
    return float(task.time_limit or task.soft_time_limit or 0)


def _lock_timeout(task: Any) -> float:
    """Return the lock timeout of a task in seconds; 0 if it has no lock or no timeout.

    Without a timeout the lock is held as long as the body runs, so a redelivered message finds it.
    """
    locked = task if isinstance(task, OnceTask) else lock_of(task)
    if locked is None:
        return 0
    timeout_ms, _ = spans(locked.timeout, getattr(locked, "lease", DEFAULT), task.name)
    return 0 if timeout_ms == UNTIL_RELEASED else timeout_ms / 1000


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


def acknowledged_early() -> list[str]:
    """Return the guarded tasks and ``OnceTask``s that are not started again when their process is killed."""
    import_task_modules()
    app, guarded = project_app(), {id(lock) for _, _, lock, *_ in registered()}
    return sorted(
        task.name
        for task in ([] if app is None else app.tasks.values())
        if (isinstance(task, OnceTask) or id(lock_of(task)) in guarded)
        and not (task.acks_late and task.reject_on_worker_lost)
    )


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
            "While the store is down these run without their lock, maybe twice at once, and no guarded row refuses the"
            f" second: {_join_names(names)}.",
            hint="Say on each what is right for it: on_unavailable='raise', 'skip', or 'run' where twice does no harm;"
            " or guard the row with model_lock.",
            id="tasklock.W015",
        )
    ]


def _join_names(names: list[str]) -> str:
    return ", ".join(names[:MAX_NAMES]) + (f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else "")
