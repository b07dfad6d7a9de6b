"""Errors for options that are misspelt, another package's, or in the wrong place, each with the right way to write it.

Celery silently stores every option that it does not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django_tasklock.celery.options import CALL_OPTIONS, TASK_OPTIONS, closest_option
from django_tasklock.exceptions import TaskLockError

_FOREIGN_OPTIONS = {
    "once": "it is celery-once's, and would replace OnceTask.once(); write key='report:{day}' for its keys, timeout=..."
    " for its timeout, on_conflict='skip' for graceful, unique='until_start' for unlock_before_run",
    "unique_on": "it is celery-singleton's; write unique='until_finish', and key='report:{day}' with the arguments"
    " that count",
    "raise_on_duplicate": "it is celery-singleton's; write on_conflict='raise'",
    "lock_expiry": "it is celery-singleton's; write timeout=..., or unique_for=... for the time in the queue",
    "reentrant": "it is task_lock's; a OnceTask never takes its own lock twice",
}
COMPARED_OPTIONS = tuple(name for name in TASK_OPTIONS if name not in ("guard", "model"))
"""The option names that others are compared with.

Not ``guard`` and ``model``: each looks like a misspelling of the other, and projects have a ``mode``.
"""
_OWN_OPTIONS = ("on_conflict", "on_unavailable")
"""The task attributes that have a meaning in this package only."""
_SHARED_OPTIONS = ("timeout",)
"""Our option names that are publishing options as well: kombu has a ``timeout``."""


def refuse_class_options(kind: type[Any], own: type[Any]) -> None:
    """Raise ``TaskLockError`` for a misplaced or misspelt option among the attributes of a task class.

    ``own``: the base that defines our options. Attributes that resemble no option are the project's own.
    """
    ours, label = set(own.__mro__), kind.name or kind.__qualname__
    known = set(dir(own))  # not hasattr(own, "app"): that makes Celery bind and configure the class
    for name in {name for base in kind.__mro__ if base not in ours for name in vars(base)}:
        value = getattr(kind, name, None)
        if name.startswith("_") or callable(value):
            continue
        if name in _FOREIGN_OPTIONS:
            raise TaskLockError(f"task {label}: {name}= is no option of OnceTask: {_FOREIGN_OPTIONS[name]}")
        if name in known or (name.endswith("s") and name[:-1] in TASK_OPTIONS):  # a plural: a list of the project's own
            continue
        if meant := closest_option(name, COMPARED_OPTIONS):
            raise TaskLockError(f"task {label}: OnceTask has no option {name!r}; did you mean {meant!r}?")


def refuse_publishing_options(task: str, sending: Mapping[str, Any], where: str) -> None:
    """Raise ``TaskLockError`` for a call option among publishing options, where Celery ignores it."""
    stamps = sending.get("stamped_headers") or ()
    for option in sending:
        if option in stamps or option in _SHARED_OPTIONS:
            continue
        meant = option if option in CALL_OPTIONS else closest_option(option, CALL_OPTIONS)
        if meant and meant not in _SHARED_OPTIONS:
            raise TaskLockError(
                f"task {task}: {option}= is no option of {where}: write task.once({meant}=...).{where}, or"
                f" once={{{meant!r}: ...}} among its options"
            )


def refuse_without_base(kind: type[Any]) -> None:
    """Raise ``TaskLockError`` for our options on a task whose class does not know them."""
    if kind.name is None:  # an abstract base, such as ours
        return
    for name in _OWN_OPTIONS:
        if name in vars(kind) and not any(hasattr(base, name) for base in kind.__bases__):
            raise TaskLockError(
                f"task {kind.name}: {name}= means nothing to Celery's own tasks: add base=OnceTask (from"
                f" django_tasklock.celery), or give it to the lock decorator, @task_lock(..., {name}=...)"
            )
