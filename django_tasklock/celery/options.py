"""The options of one call of a ``OnceTask``, validated on publication, before anything is stored."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from datetime import timedelta
from difflib import SequenceMatcher
from functools import lru_cache
from operator import attrgetter
from types import NoneType
from typing import Any

from django.core.signals import setting_changed

from django_tasklock.conf import DEFAULT, Duration, get_settings, milliseconds
from django_tasklock.decorators.options import LockOptions
from django_tasklock.exceptions import TaskLockError
from django_tasklock.names import clean

UNIQUE = (None, "until_start", "until_finish")
"""The valid values of ``unique``."""

CALL_OPTIONS = (
    "key", "timeout", "lease", "blocking_timeout", "on_conflict", "on_unavailable", "unique", "unique_for",
    "on_duplicate", "queue_limit",
)  # fmt: skip
"""The options that a single call may set; a task sets them for all of its calls."""
TASK_OPTIONS = (*CALL_OPTIONS, "guard", "model", "pk", "lookup", "release_connections", "takeovers")
"""The options of a task."""
_LOCK_OPTIONS = (
    "timeout",
    "lease",
    "blocking_timeout",
    "on_conflict",
    "on_unavailable",
    "queue_limit",
    "release_connections",
)
_ONCE_OPTIONS = ("unique", "unique_for", "on_duplicate")
_PREFIX = "celery_once_"
_KEYWORDS = ("key", "timeout", "blocking_timeout", "sleep", "enable_wait", "enable_retry")
_DURATIONS = ("timeout", "lease", "blocking_timeout", "unique_for")


@dataclass(frozen=True, slots=True)
class OnceOptions:
    """The options of one call except its key: those of its lock, and those that only a ``OnceTask`` has.

    Raises ``TaskLockError`` for an invalid combination.
    """

    lock: LockOptions
    unique: str | None
    unique_for: Duration | None
    on_duplicate: str

    def __post_init__(self) -> None:
        where = self.lock.label
        if self.unique not in UNIQUE:
            raise TaskLockError(f"{where}: unique must be None, 'until_start' or 'until_finish', not {self.unique!r}")
        if self.on_duplicate not in ("return", "raise"):
            raise TaskLockError(f"{where}: on_duplicate must be 'return' or 'raise', not {self.on_duplicate!r}")
        if self.unique_for is not None:
            milliseconds(self.unique_for, "unique_for", name=where)
            if self.unique is None:
                raise TaskLockError(f"{where}: unique_for goes with unique")


def pop_keywords(kwargs: MutableMapping[str, Any], default_conflict: str | None = None) -> dict[str, Any]:
    """Remove the ``celery_once_*`` arguments from ``kwargs`` and return them as options; the body never gets them.

    ``celery_once_enable_wait``, or ``celery_once_enable_retry``, waits for a busy lock for at most
    ``celery_once_blocking_timeout``, by default the timeout; if False, the message is rejected. ``celery_once_sleep``
    is accepted and ignored: waiters are woken. ``default_conflict``: the ``on_conflict`` that applies if neither is
    given.
    """
    keywords = [option for option in kwargs if option.startswith(_PREFIX)]
    if not keywords:
        return {}
    found = {option.removeprefix(_PREFIX): kwargs.pop(option) for option in keywords}
    if unknown := sorted(set(found) - set(_KEYWORDS)):
        known = ", ".join(_PREFIX + option for option in _KEYWORDS)
        raise TaskLockError(f"unknown option {', '.join(_PREFIX + option for option in unknown)}; known: {known}")
    if found.get("sleep"):  # 0 is valid
        milliseconds(found["sleep"], "celery_once_sleep")
    if not found.get("key"):  # as in celery-once: an empty key counts as none
        found.pop("key", None)
    overrides = {option: found[option] for option in ("key", "blocking_timeout") if found.get(option) is not None}
    if "timeout" in found:
        overrides["timeout"] = found["timeout"]  # None: until it is released, as in celery-once
    waits = [bool(found[option]) for option in ("enable_wait", "enable_retry") if option in found]
    if waits:
        overrides["on_conflict"] = "wait" if any(waits) else "reject"
    if overrides.get("on_conflict", default_conflict) != "wait":
        overrides.pop("blocking_timeout", None)  # as in celery-once: ignored without waiting
    return overrides


def pop_overrides(task: Any, kwargs: dict[str, Any], once: Any) -> dict[str, Any]:
    """Return the options that the caller of ``task`` gives: in ``once``, and as keywords.

    The keywords are removed from ``kwargs``.
    """
    # ``dict`` first: it is nearly always one, and saves the slow check against an ABC.
    if not isinstance(once, (dict, Mapping, NoneType)):
        raise TaskLockError(f"task {task.name}: once must be a dict of options, not {once!r}")
    once = once or {}
    on_conflict = once.get("on_conflict") or task.on_conflict or get_settings().ON_CONFLICT
    overrides = {**pop_keywords(kwargs, on_conflict), **once}
    return {option: value for option, value in overrides.items() if value is not DEFAULT} if overrides else overrides


def refuse_unknown(overrides: Mapping[str, Any], where: str) -> None:
    """Raise ``TaskLockError`` if ``overrides`` has an unknown option."""
    unknown = sorted(set(overrides) - set(CALL_OPTIONS))
    if unknown:
        hint = "".join(
            f" (did you mean {meant!r}?)" for option in unknown if (meant := closest_option(option, CALL_OPTIONS))
        )
        raise TaskLockError(f"{where}: unknown option {', '.join(unknown)}{hint}; known: {', '.join(CALL_OPTIONS)}")


def check(options: Mapping[str, Any], where: str) -> OnceOptions:
    """Validate all options of a call and return them. Raises ``TaskLockError``.

    ``where``: the task or call, for error messages.
    """
    if options["key"] is not None and not callable(options["key"]):
        clean(options["key"])
    lock = LockOptions(label=where, **{option: options[option] for option in _LOCK_OPTIONS})
    return OnceOptions(lock, **{option: options[option] for option in _ONCE_OPTIONS})


def merge(task: Any, overrides: Mapping[str, Any]) -> OnceOptions:
    """Return the options of one call: the task's, overridden by the caller's. Raises ``TaskLockError``."""
    own = _own_values(type(task))
    if not overrides:
        try:
            return _own_options(task.name, *own)
        except TypeError:  # an unhashable option: the uncached path below reports it
            pass
    refuse_unknown(overrides, f"task {task.name}, once()")
    return _merge(task.name, own, overrides)


_MERGED = (*(option for option in CALL_OPTIONS if option != "key"), "release_connections")
_own_values = attrgetter(*_MERGED)


def _merge(task: str, own: tuple[Any, ...], overrides: Mapping[str, Any]) -> OnceOptions:
    found = dict(zip(_MERGED, own, strict=True))
    # With another ``on_conflict`` these two options of the task do not apply.
    if overrides.get("on_conflict", found["on_conflict"]) != found["on_conflict"]:
        found["blocking_timeout"] = found["queue_limit"] = None
    if overrides.get("unique", found["unique"]) is None:
        found["unique_for"] = None
    found.update((option, value) for option, value in overrides.items() if option != "key")
    found["on_conflict"] = found["on_conflict"] or get_settings().ON_CONFLICT
    return check({**found, "key": overrides.get("key")}, f"task {task}")


@lru_cache(maxsize=256, typed=True)
def _own_options(task: str, *own: Any) -> OnceOptions:
    """Return the options of a call without overrides, cached until the settings change."""
    return _merge(task, own, {})


def _clear_cache(*, setting: str, **kwargs: object) -> None:
    if setting == "TASKLOCK":
        _own_options.cache_clear()


# On import, for the same reason as in ``conf``.
setting_changed.connect(_clear_cache, dispatch_uid="tasklock.celery.options")


@lru_cache(maxsize=256)
def closest_option(text: str, known: tuple[str, ...]) -> str | None:
    """Return the option that ``text`` is probably a misspelling of, or ``None`` in doubt."""
    alike = {name: SequenceMatcher(None, text.lower(), name).ratio() for name in known}
    best = max(known, key=alike.__getitem__)
    if len(best) < 4:  # in a word as short as ``key`` a swapped letter halves the ratio
        return best if sorted(best) == sorted(text.lower()) else None
    if len(best) < 8:
        return best if alike[best] >= 0.85 and text[:1].lower() == best[0] else None
    return best if alike[best] > 0.8 else None


def serializable(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options in the form in which they are sent: durations in seconds."""
    if not options:
        return {}
    travels = {key: value for key, value in options.items() if value is not DEFAULT}
    for key in _DURATIONS:
        if isinstance(travels.get(key), timedelta):
            travels[key] = travels[key].total_seconds()
    return travels


def static_attribute(kind: type[Any], name: str) -> Any:
    """Return a class attribute without binding it: a function stays a function."""
    for base in kind.__mro__:  # as inspect.getattr_static does, but much faster
        if name in vars(base):
            value = vars(base)[name]
            return value.__func__ if isinstance(value, staticmethod) else value
    raise AttributeError(name)
