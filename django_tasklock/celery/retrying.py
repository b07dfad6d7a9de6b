"""The header of what ``retry()`` sends; ``autoretry_for`` for what is raised before the body."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, NoReturn

from celery.app.autoretry import add_autoretry_behaviour

from django_tasklock.celery import options
from django_tasklock.celery.state import state_of
from django_tasklock.exceptions import TaskLockError

_RETRY_OPTIONS = (
    "autoretry_for", "dont_autoretry_for", "retry_kwargs", "retry_backoff", "retry_backoff_max", "retry_jitter",
    "max_retries", "override_max_retries",
)  # fmt: skip


def header_of_retry(task: Any, request: Any, header: Mapping[str, Any], args: Any, kwargs: Any) -> dict[str, Any]:
    """Return the header of a next try with these arguments; ``None``: those of this one.

    With another lock it has nothing of what this try has: no sequence number, nothing that is kept for it. A key that
    its caller has chosen stays.
    """
    if args is None and kwargs is None:
        return dict(header)
    before = request.args or (), request.kwargs or {}
    after = before[0] if args is None else args, before[1] if kwargs is None else kwargs
    if "key" not in header or _name(task, *before) != header["key"]:
        return dict(header)
    name = _name(task, *after)
    if name is None or name == header["key"]:
        return dict(header)
    state_of(request).moved = True
    return {"key": name, "once": header.get("once") or {}}


def _name(task: Any, args: Any, kwargs: Mapping[str, Any]) -> str | None:
    """Return the lock of a call with these arguments; ``None``: none can be named, or the caller has."""
    rest = dict(kwargs)
    if "key" in options.pop_keywords(rest):
        return None
    try:
        return str(task.lock_name(*args, **rest))
    except (TypeError, TaskLockError):  # arguments that do not fit are Celery's to refuse
        return None


def autoretried(task: Any, error: Exception) -> NoReturn:
    """Raise ``error``, or what the task's ``autoretry_for`` makes of it: as if the task's body had raised it."""

    def run() -> NoReturn:
        raise error

    options_of_task = {word: getattr(task, word) for word in _RETRY_OPTIONS if hasattr(task, word)}
    stands_in = SimpleNamespace(run=run, request=task.request, retry=task.retry, **options_of_task)
    add_autoretry_behaviour(stands_in)
    stands_in.run()
    raise error
