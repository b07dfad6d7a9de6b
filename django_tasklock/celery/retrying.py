"""The header of the message that ``retry()`` sends, and ``autoretry_for`` for errors before the body."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, NoReturn

from celery.app.autoretry import add_autoretry_behaviour

from django_tasklock.celery import options
from django_tasklock.celery.state import state_of
from django_tasklock.exceptions import TaskLockError
from django_tasklock.names import of_tenant

_RETRY_OPTIONS = (
    "autoretry_for", "dont_autoretry_for", "retry_kwargs", "retry_backoff", "retry_backoff_max", "retry_jitter",
    "max_retries", "override_max_retries",
)  # fmt: skip


def retry_header(task: Any, request: Any, header: Mapping[str, Any], args: Any, kwargs: Any) -> dict[str, Any]:
    """Return the header of a retry with these arguments; ``None``: those of this try.

    If the arguments change the lock, the header loses the sequence number and the ``unique`` lock of this try. A key
    that the caller chose stays.
    """
    if args is None and kwargs is None:
        return dict(header)
    before = request.args or (), request.kwargs or {}
    after = before[0] if args is None else args, before[1] if kwargs is None else kwargs
    with of_tenant(header.get("tenant")):
        if "key" not in header or _name(task, *before) != header["key"]:
            return dict(header)
        name = _name(task, *after)
    if name is None or name == header["key"]:
        return dict(header)
    state_of(request).lock_changed = True
    return {"key": name, "once": header.get("once") or {}, **{key: header[key] for key in ("tenant",) if key in header}}


def _name(task: Any, args: Any, kwargs: Mapping[str, Any]) -> str | None:
    """Return the lock of a call with these arguments; ``None`` if it has no name, or the caller chose the key."""
    rest = dict(kwargs)
    if "key" in options.pop_keywords(rest):
        return None
    try:
        return str(task.lock_name(*args, **rest))
    except (TypeError, TaskLockError):  # Celery reports arguments that do not fit
        return None


def raise_or_retry(task: Any, error: Exception) -> NoReturn:
    """Raise ``error``, or the ``Retry`` that ``autoretry_for`` makes of it, as if the task's body had raised it."""

    def run() -> NoReturn:
        raise error

    options_of_task = {option: getattr(task, option) for option in _RETRY_OPTIONS if hasattr(task, option)}
    stand_in = SimpleNamespace(run=run, request=task.request, retry=task.retry, **options_of_task)
    add_autoretry_behaviour(stand_in)
    stand_in.run()
    raise error
