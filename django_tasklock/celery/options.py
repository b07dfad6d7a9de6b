"""The options of a ``OnceTask`` and of one call of it, checked before anything is stored or sent."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from datetime import timedelta
from difflib import get_close_matches
from functools import cache
from inspect import getattr_static
from types import CodeType
from typing import TYPE_CHECKING, Any

from django_tasklock.conf import DEFAULT, Duration, get_settings, milliseconds
from django_tasklock.decorators.options import LockOptions
from django_tasklock.exceptions import TaskLockError
from django_tasklock.names import clean

if TYPE_CHECKING:
    from celery.canvas import Signature
    from celery.result import AsyncResult

logger = logging.getLogger("django_tasklock")

UNIQUE = (None, "until_start", "until_finish")
"""The valid values of ``unique``."""
_ONCE_OPTIONS = ("unique", "unique_for", "on_duplicate")
_LOCK_OPTIONS = ("timeout", "lease", "blocking_timeout", "on_conflict", "on_unavailable", "queue_limit")
CALL_OPTIONS = ("key", *_LOCK_OPTIONS, *_ONCE_OPTIONS)
"""The options that a single call may set; a task sets them for all of its calls."""
_TASK_OPTIONS = (*CALL_OPTIONS, "guard", "model", "lookup", "release_connections", "takeovers")
_PREFIX = "celery_once_"
_KEYWORDS = ("key", "timeout", "blocking_timeout", "sleep", "enable_wait", "enable_retry")
_FOREIGN_OPTIONS = {
    "once": "it is celery-once's, and would replace OnceTask.once(); write key='report:{day}' for its keys, timeout=..."
    " for its timeout, on_conflict='skip' for graceful, unique='until_start' for unlock_before_run",
    "unique_on": "it is celery-singleton's; write unique='until_finish', and key='report:{day}' with the arguments"
    " that count",
    "raise_on_duplicate": "it is celery-singleton's; write on_duplicate='raise'",
    "lock_expiry": "it is celery-singleton's; write timeout=..., or unique_for=... for the time in the queue",
    "reentrant": "it is task_lock's; a OnceTask never takes its own lock twice",
}


@dataclass(frozen=True, slots=True)
class OnceOptions:
    """The options of a task or of one call of it, except its key: those of its lock, and those of publication.

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


def of_task(kind: type[Any]) -> OnceOptions:
    """Return the options of a ``OnceTask`` when it is bound. Raises ``TaskLockError`` for invalid and foreign ones."""
    where = f"task {kind.name}"
    for option, instead in _FOREIGN_OPTIONS.items():
        if not callable(getattr(kind, option, len)):
            raise TaskLockError(f"{where}: {option}= is no option of OnceTask: {instead}")
    _refuse_misspelt(kind, _TASK_OPTIONS, 0.8)
    found = {option: getattr_static(kind, option) for option in (*_LOCK_OPTIONS, *_ONCE_OPTIONS)}
    return _options(where, found, release_connections=getattr_static(kind, "release_connections"))


def _refuse_misspelt(kind: type[Any], options: tuple[str, ...], near_by: float) -> None:
    """Raise ``TaskLockError`` for an attribute of a task that is a misspelt option: its name is as similar to one, by
    difflib's measure, and nothing that the project has written for the task reads it.
    """
    own = [base for base in kind.__mro__ if base.__module__.partition(".")[0] not in ("celery", "django_tasklock")]
    theirs = [base for base in kind.__mro__ if base not in own]
    given = dict.fromkeys(
        name
        for base in own
        if base is not object
        for name, value in vars(base).items()
        if not name.startswith("_") and not inspect.isroutine(value) and not any(name in vars(one) for one in theirs)
    )
    for name in given:
        near = get_close_matches(name.lower(), options, 1, near_by)
        if near and not any(name in _names_in(function) for base in own for function in vars(base).values()):
            raise TaskLockError(
                f"task {kind.name}: {name}= is no option, and nothing in the task reads it: did you mean {near[0]}=?"
            )


def _names_in(function: Any) -> Iterator[str]:
    """Yield the names of attributes that a function reads, and its texts, which may be such names."""
    function = inspect.unwrap(getattr(function, "__func__", None) or getattr(function, "fget", None) or function)
    codes = [getattr(function, "__code__", None)]
    while codes:
        if isinstance(code := codes.pop(), CodeType):
            yield from code.co_names
            yield from (text for text in code.co_consts if isinstance(text, str))
            codes += [inner for inner in code.co_consts if isinstance(inner, CodeType)]


def method_of(kind: type[Any]) -> str:
    """Return the method by which a project's class names the lock, ``get_lock`` or ``get_key``; empty: there is none.

    Raises ``TaskLockError`` for a ``get_lock`` of other arguments, which would be ignored, and for one beside ``key``.
    """
    for method in ("get_lock", "get_key"):
        if (function := getattr(kind, method, None)) is None:
            continue
        if not callable(function) or [*inspect.signature(function).parameters][-2:] != ["args", "kwargs"]:
            if method == "get_key":  # of the project's own, for something else
                continue
            raise TaskLockError(
                f"task {kind.name}: get_lock must be a method get_lock(self, args, kwargs), which returns the name of"
                " the lock; call it otherwise if it is something else"
            )
        if getattr_static(kind, "key") is not None:
            raise TaskLockError(f"task {kind.name}: both key= and {method}() name its lock; leave one of them out")
        return method
    return ""


def of_lock(task: Any, lock: Any) -> dict[str, Any]:
    """Return the options of a call that ``get_lock`` said: the name of a lock, or one of redis-py.

    Raises ``TaskLockError`` for anything else.
    """
    name = getattr(lock, "name", lock)
    name = name.decode() if isinstance(name, bytes) else name
    if not isinstance(name, str) or not name:
        text = f"task {task.name}: {task.names_lock}() must return the lock's name, or a lock with a name, not {lock!r}"
        raise TaskLockError(text)
    times = () if lock is name else ("timeout", "blocking_timeout")
    return {"key": name, **{option: getattr(lock, option) for option in times if hasattr(lock, option)}}


def joined(task: Any, said: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a call: what ``get_lock`` ``said``, overridden by the caller's."""
    found = {**said, **overrides}
    if "blocking_timeout" in said and found.get("on_conflict", task.once_options.lock.on_conflict) != "wait":
        found = {**found, "blocking_timeout": overrides.get("blocking_timeout")}
    return found


def of_call(task: Any, overrides: Mapping[str, Any]) -> OnceOptions:
    """Return the options of one call: the task's, overridden by the caller's. Raises ``TaskLockError``."""
    own: OnceOptions = task.once_options
    if not overrides:
        return own
    if unknown := sorted(set(overrides) - set(CALL_OPTIONS)):
        raise TaskLockError(f"task {task.name}, once(): {_no_option(unknown, CALL_OPTIONS)}")
    if (key := overrides.get("key")) is not None and not callable(key):
        clean(key)
    found = {option: getattr(own.lock, option) for option in _LOCK_OPTIONS}
    found |= {option: getattr(own, option) for option in _ONCE_OPTIONS}
    # With another ``on_conflict`` these two options of the task do not apply.
    if overrides.get("on_conflict", found["on_conflict"]) != found["on_conflict"]:
        found["blocking_timeout"] = found["queue_limit"] = None
    if overrides.get("unique", found["unique"]) is None:
        found["unique_for"] = None
    found |= {option: value for option, value in overrides.items() if option != "key"}
    return _options(own.lock.label, found, release_connections=own.lock.release_connections)


def _options(where: str, found: Mapping[str, Any], *, release_connections: bool | None) -> OnceOptions:
    lock = {option: found[option] for option in _LOCK_OPTIONS}
    lock["on_conflict"] = lock["on_conflict"] or get_settings().ON_CONFLICT
    return OnceOptions(
        LockOptions(label=where, release_connections=release_connections, **lock),
        **{option: found[option] for option in _ONCE_OPTIONS},
    )


def pop_overrides(task: Any, kwargs: dict[str, Any], once: Any) -> dict[str, Any]:
    """Return the options that the caller of ``task`` gives: in ``once``, and as keywords.

    The keywords are removed from ``kwargs``.
    """
    if once is not None and not isinstance(once, Mapping):
        raise TaskLockError(f"task {task.name}: once must be a dict of options, not {once!r}")
    once = once or {}
    given = [option for option in ("sleep", "blocking_timeout") if kwargs.get(_PREFIX + option) is not None]
    overrides = {**pop_keywords(kwargs, once.get("on_conflict") or task.once_options.lock.on_conflict), **once}
    for option in given:
        if option not in overrides:
            _say_unused(task.name, _PREFIX + option)
    return {option: value for option, value in overrides.items() if value is not DEFAULT}


@cache
def _say_unused(task: str, option: str) -> None:
    """Log, once for each task, that an option of its callers does nothing."""
    why = "a waiter is woken" if option.endswith("sleep") else "the call does not wait for a busy lock"
    logger.warning("task %s: %s does nothing here: %s", task, option, why)


def pop_keywords(kwargs: MutableMapping[str, Any], default_conflict: str | None = None) -> dict[str, Any]:
    """Remove the ``celery_once_*`` arguments from ``kwargs`` and return them as options; the body never gets them.

    ``celery_once_enable_wait``, or ``celery_once_enable_retry``, waits for a busy lock for at most
    ``celery_once_blocking_timeout``, by default the timeout; if False, the message is rejected. ``celery_once_sleep``
    is accepted and does nothing: waiters are woken. ``default_conflict``: the ``on_conflict`` that applies if neither
    is given.
    """
    keywords = [option for option in kwargs if option.startswith(_PREFIX)]
    if not keywords:
        return {}
    found = {option.removeprefix(_PREFIX): kwargs.pop(option) for option in keywords}
    if unknown := sorted(set(keywords) - {_PREFIX + option for option in _KEYWORDS}):
        raise TaskLockError(_no_option(unknown, tuple(_PREFIX + option for option in _KEYWORDS)))
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


def _no_option(unknown: list[str], known: tuple[str, ...]) -> str:
    meant = [f" (did you mean {near[0]!r}?)" for option in unknown if (near := get_close_matches(option, known, 1))]
    return f"unknown option {', '.join(unknown)}{''.join(meant)}; known: {', '.join(known)}"


def refuse_among_publishing_options(task: str, sending: Mapping[str, Any], where: str) -> None:
    """Raise ``TaskLockError`` for a call option among publishing options, where Celery silently ignores it."""
    stamps = sending.get("stamped_headers") or ()
    for option in sending:
        if option in CALL_OPTIONS and option not in stamps and option != "timeout":  # kombu has a ``timeout``
            raise TaskLockError(
                f"task {task}: {option}= is no option of {where}: write task.once({option}=...).{where}, or"
                f" once={{{option!r}: ...}} among its options"
            )


def refuse_without_base(kind: type[Any]) -> None:
    """Raise ``TaskLockError`` for our options on a task whose class does not know them."""
    for name in ("on_conflict", "on_unavailable"):
        if kind.name is not None and name in vars(kind) and not any(hasattr(base, name) for base in kind.__bases__):
            raise TaskLockError(
                f"task {kind.name}: {name}= means nothing to Celery's own tasks: add base=OnceTask (from"
                f" django_tasklock.celery), or give it to the lock decorator, @task_lock(..., {name}=...)"
            )
    if kind.name is not None and not any(hasattr(kind, name) for name in ("on_conflict", "on_unavailable")):
        _refuse_misspelt(kind, ("on_conflict", "on_unavailable"), 0.9)


def serializable(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options in the form in which they are sent: durations in seconds."""
    return {
        option: value.total_seconds() if isinstance(value, timedelta) else value
        for option, value in options.items()
        if value is not DEFAULT
    }


class Once:
    """A task with the options of one call, as ``OnceTask.once()`` returns it."""

    def __init__(self, task: Any, overrides: Mapping[str, Any]) -> None:
        self.task = task
        self.overrides = dict(overrides)

    def delay(self, *args: Any, **kwargs: Any) -> AsyncResult[Any]:
        """Publish the task."""
        return self.apply_async(args, kwargs)

    def apply_async(self, args: Any = None, kwargs: Any = None, **sending: Any) -> AsyncResult[Any]:
        """Publish the task, with Celery's options."""
        return self.task.apply_async(args, kwargs, once=self.overrides, **sending)  # type: ignore[no-any-return]

    def delay_on_commit(self, *args: Any, **kwargs: Any) -> None:
        """Publish the task when the database transaction is committed."""
        self.apply_async_on_commit(args, kwargs)

    def apply_async_on_commit(self, args: Any = None, kwargs: Any = None, **sending: Any) -> None:
        """Publish the task, with Celery's options, when the database transaction is committed."""
        self.task.apply_async_on_commit(args, kwargs, once=self.overrides, **sending)

    def apply(self, args: Any = None, kwargs: Any = None, **sending: Any) -> Any:
        """Run the task here and now."""
        return self.task.apply(args, kwargs, once=self.overrides, **sending)

    def s(self, *args: Any, **kwargs: Any) -> Signature[Any]:
        """Return a signature, for chains, groups and chords."""
        return self.task.s(*args, **kwargs).set(once=serializable(self.overrides))  # type: ignore[no-any-return]

    def si(self, *args: Any, **kwargs: Any) -> Signature[Any]:
        """Return an immutable signature."""
        return self.task.si(*args, **kwargs).set(once=serializable(self.overrides))  # type: ignore[no-any-return]
