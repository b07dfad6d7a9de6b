"""The ``TASKLOCK`` setting: one dict, read when it is first needed, and again when it changes.

It is never written back to Django's settings.
"""

from __future__ import annotations

import asyncio
import enum
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import timedelta
from functools import cache, cached_property
from typing import Any, Final, Literal, get_args

from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from django_tasklock.api_keys import ApiKey, keys_of, problems as key_problems
from django_tasklock.exceptions import TaskLockError
from django_tasklock.texts import without_password

Duration = int | float | timedelta
"""Seconds, or a timedelta."""


class _Default(enum.Enum):
    DEFAULT = "the setting"
    __hash__ = object.__hash__  # Enum's is slow, being written in Python, and each new lock uses it


DEFAULT: Final = _Default.DEFAULT
"""The value of the setting, for a lease or a timeout. ``None`` means no heartbeat, or no timeout."""

LeaseTime = Duration | None | _Default
"""A duration, ``None`` for no heartbeat, or ``DEFAULT``."""

Timeout = Duration | None | _Default
"""A duration, ``None`` for "until it is released", or ``DEFAULT``. Without a lease ``None`` is ``DEFAULT``, because the
lock of a process that died would never expire."""

OnConflict = Literal["skip", "raise", "wait", "retry", "reject", "queue", "coalesce"]
"""What a call does when the lock is busy. The last four postpone a message: only under Celery."""
WORDS = get_args(OnConflict)
"""The values of ``OnConflict``."""
OnUnavailable = Literal["run", "raise", "skip"]
"""What a call does when the store is down: run without the lock, raise, or skip."""


def milliseconds(value: object, what: str, *, name: str | None = None) -> int:
    """Return a duration in whole milliseconds. Raises ``TaskLockError`` unless it is positive and at most ten years."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TaskLockError(f"{what} must be seconds (int, float) or a timedelta, not {value!r}", name=name)
    if not seconds >= 0.001:  # written this way it refuses NaN, too
        raise TaskLockError(f"{what} must be a positive number of seconds, at least 0.001, not {value!r}", name=name)
    if seconds > _LONGEST:
        raise TaskLockError(f"{what} may be ten years at most, not {value!r}", name=name)
    return round(seconds * 1000)


_LONGEST = 10 * 366 * 86400
UNTIL_RELEASED: Final = _LONGEST * 1000
"""The timeout of a lock without a timeout, in milliseconds. It is the same in every release of this package."""


QUORUM: Final = "django_tasklock.backends.quorum.QuorumBackend"
"""The backend that has several addresses."""
_OURS = "django_tasklock.backends."
_DEFAULT_PREFIX = "task_lock:"


@dataclass(frozen=True)
class Settings:
    """``TASKLOCK`` with defaults filled in. Durations are in seconds."""

    BACKEND: str | None = None
    LOCATION: str | Sequence[str] = field(default="default", repr=False)
    """An alias or a URL, which may contain a password; for ``QuorumBackend`` a list of them."""
    KEY_PREFIX: str | Callable[[], str] = _DEFAULT_PREFIX
    """The prefix in the store; or a function, or its dotted path, that returns the tenant whose code runs."""
    TIMEOUT: Duration | None = 3600
    """``None``: until the lock is released, or its lease expires."""
    LEASE: Duration = 60
    ON_CONFLICT: OnConflict = "skip"
    ON_UNAVAILABLE: OnUnavailable = "run"
    RATE_LIMITS: Mapping[str, Any] = field(default_factory=dict)
    """Names with a rate, ``{"tavily": "100/m"}``, or with a dict of ``rates`` and other options of ``RateLimiter``."""
    API_KEYS: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Names with a secret, or with ``{"secret": ..., "may": ["read"]}``: the keys of the REST API."""
    AUDIT_DAYS: int | None = 365
    """How many days the sweep keeps entries of the audit trail; ``None``: for ever."""
    API_KEY_IN_QUERY: bool = False
    """Whether a key may also come in the query, ``?api_key=``, which ends up in logs."""
    MESSAGE_LEASE: Duration | None = 60
    """After how long a dead Celery worker's messages start again, with Redis as the broker; ``None``: after the
    visibility timeout of the broker."""
    METRICS: bool = True
    """Whether what happens to locks and limiters is counted, by kind."""

    @property
    def prefix(self) -> str:
        """The prefix of all names in the store, which no tenant changes."""
        given = self.KEY_PREFIX
        return given if isinstance(given, str) and given.endswith(":") else _DEFAULT_PREFIX

    @cached_property
    def tenant_function(self) -> Callable[[], object] | None:
        """The function in ``KEY_PREFIX``; ``None``: there are no tenants. Raises ``ImproperlyConfigured``."""
        given = self.KEY_PREFIX
        if not isinstance(given, str) or given.endswith(":"):
            return None if isinstance(given, str) else given
        try:
            found = import_string(given)
        except ImportError as error:
            raise ImproperlyConfigured(f"TASKLOCK['KEY_PREFIX'] {given!r} cannot be imported: {error}") from error
        if not callable(found):
            raise ImproperlyConfigured(f"TASKLOCK['KEY_PREFIX'] {given!r} is no function: {found!r}")
        return found  # type: ignore[no-any-return]

    def tenant(self) -> str:
        """Return the tenant whose code runs here; empty where there are no tenants.

        Raises ``TaskLockError`` if the function in ``KEY_PREFIX`` returns a text that cannot begin a name, and in a
        coroutine, whose thread has other database connections than the ORM calls that it awaits.
        """
        function = self.tenant_function
        if function is None:
            return ""
        if asyncio._get_running_loop() is not None and not os.environ.get("DJANGO_ALLOW_ASYNC_UNSAFE"):
            raise TaskLockError(
                "the tenant of TASKLOCK['KEY_PREFIX'] cannot be asked in a coroutine, whose thread has other database"
                " connections: await the lock ('async with', aacquire(), ainfo(), a decorated 'async def'), or call"
                " this by sync_to_async(...)"
            )
        found = function()
        if isinstance(found, str) and 0 < len(found) <= 63 and ":" not in found and found.isprintable():
            return str.__str__(found)
        raise TaskLockError(
            f"TASKLOCK['KEY_PREFIX'] returned {found!r:.100}, and a tenant is a printable text of 1 to 63 characters"
            " without a colon: return e.g. connection.schema_name"
        )

    @property
    def location(self) -> str:
        """The one alias or URL. Raises ``ImproperlyConfigured`` where there are several."""
        if isinstance(self.LOCATION, str):
            return self.LOCATION
        raise ImproperlyConfigured(
            f"TASKLOCK['LOCATION'] has {len(self.LOCATION)} addresses: only {QUORUM!r} takes several."
        )

    @cached_property
    def default_spans(self) -> tuple[int, int]:
        """The default timeout and lease in milliseconds."""
        hold = UNTIL_RELEASED if self.TIMEOUT is None else milliseconds(self.TIMEOUT, "TIMEOUT")
        return hold, min(hold, milliseconds(self.LEASE, "LEASE"))

    @cached_property
    def api_keys(self) -> tuple[ApiKey, ...]:
        """The keys of ``API_KEYS``, each with its permissions."""
        return keys_of(self.API_KEYS)


EXPIRING = 10_000
"""The greatest value of ``expiring()``, in milliseconds."""


def expiring() -> int:
    """Return the remaining milliseconds of a lease below which a lock is expiring: its renewal is overdue.

    That is ten seconds or a sixth of ``LEASE``, whichever is less: a lease that is renewed has always more than a half.
    """
    return min(EXPIRING, get_settings().default_spans[1] // 6)


RATE_LIMITS_HINT: Final = "Write {'tavily': '100/m', ...}, or a dict with 'rates' and options in place of the text."
"""The hint for an invalid ``RATE_LIMITS``."""

_CHOICES = {"ON_CONFLICT": WORDS, "ON_UNAVAILABLE": ("run", "raise", "skip")}
_KEYS = tuple(field.name for field in fields(Settings))
_GONE = {"PREFETCH_TIMEOUT": "It is no setting any more, but always five minutes: remove it."}


def problems(given: object) -> list[tuple[str, str]]:
    """Return the problems of a ``TASKLOCK`` dict, each as a message and a hint."""
    if not isinstance(given, Mapping):
        return [(f"TASKLOCK must be a dict, not {type(given).__name__}.", "Write TASKLOCK = {...} in the settings.")]
    found = []
    for key, value in given.items():
        if key not in _KEYS:
            import difflib  # here, so that only a misspelled setting costs its import

            near = difflib.get_close_matches(str(key).upper(), _KEYS, n=1, cutoff=0.4)
            hint = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(_KEYS)}."
            hint = _GONE.get(key, hint)
            found.append((f"TASKLOCK has no setting {key!r}.", hint))
            continue
        if key == "API_KEYS":
            found += key_problems(value)
        elif key == "RATE_LIMITS":  # the limiter and the system checks validate each of them
            found += _not_a_dict(value)
        elif wrong := _wrong(key, value):
            what = f"TASKLOCK[{key!r}] {wrong}, not {without_password(repr(value))}."
            found.append((what, f"Its default is {getattr(_DEFAULTS, key)!r}."))
    if not found:
        found += _several(given.get("BACKEND"), given.get("LOCATION", _DEFAULTS.LOCATION))
    if not found and "LEASE" in given:
        lease, timeout = (given.get(key, getattr(_DEFAULTS, key)) for key in ("LEASE", "TIMEOUT"))
        if timeout is not None and milliseconds(lease, "LEASE") > milliseconds(timeout, "TIMEOUT"):
            what = f"TASKLOCK['LEASE'] ({lease}) is longer than TASKLOCK['TIMEOUT'] ({timeout})."
            found.append((what, "A lease is renewed until the timeout: make it shorter."))
    return found


def _several(backend: object, locations: object) -> list[tuple[str, str]]:
    """Return the problems of the number of addresses. A project's own backend may have any number."""
    hint = (
        "A majority needs three independent Redis servers, or five: 'LOCATION': ['redis://a:6379/0',"
        " 'redis://b:6379/0', 'redis://c:6379/0']."
    )
    if isinstance(locations, str):
        what = f"TASKLOCK['BACKEND'] {QUORUM!r} has one address in TASKLOCK['LOCATION']."
        return [(what, hint)] if backend == QUORUM else []
    assert isinstance(locations, list | tuple)
    number = "1 address" if len(locations) == 1 else f"{len(locations)} addresses"
    if backend is None or (backend != QUORUM and str(backend).startswith(_OURS)):
        what = f"TASKLOCK['LOCATION'] has {number} in a list, which TASKLOCK['BACKEND'] cannot use."
        return [(what, f"Name one, or set TASKLOCK['BACKEND'] to {QUORUM!r}.")]
    if backend != QUORUM:
        return []
    if len(locations) < 3:
        return [(f"TASKLOCK['LOCATION'] has {number}, too few for a majority that survives a failure.", hint)]
    if len(set(locations)) < len(locations):
        return [("TASKLOCK['LOCATION'] has an address twice: that server would have two votes.", hint)]
    if len(locations) % 2 == 0:
        what = f"TASKLOCK['LOCATION'] has {number}, which survive no more failures than {len(locations) - 1} would."
        return [(what, "Take one away, or add one: the number of instances is to be odd.")]
    return []


def _not_a_dict(given: object) -> list[tuple[str, str]]:
    if isinstance(given, Mapping):
        return []
    return [(f"TASKLOCK['RATE_LIMITS'] must be a dict, not {type(given).__name__}.", RATE_LIMITS_HINT)]


def _wrong(key: str, value: object) -> str:
    if key in ("API_KEY_IN_QUERY", "METRICS"):
        return "" if isinstance(value, bool) else "must be True or False"
    if key == "AUDIT_DAYS":
        fits = value is None or (type(value) is int and 1 <= value <= 36_500)
        return "" if fits else "must be a whole number of days, 1 or more, or None"
    if key in _CHOICES:
        return "" if value in _CHOICES[key] else f"must be one of {', '.join(map(repr, _CHOICES[key]))}"
    if key in ("TIMEOUT", "MESSAGE_LEASE") and value is None:
        return ""
    if key in ("TIMEOUT", "LEASE", "MESSAGE_LEASE"):
        try:
            milliseconds(value, key)
        except TaskLockError:
            return "must be a positive number of seconds or a timedelta"
        return ""
    if key == "BACKEND" and value is None:
        return ""
    if key == "LOCATION" and isinstance(value, list | tuple):  # _several() checks their number
        return "" if all(isinstance(one, str) and one for one in value) else "must be a list of non-empty texts"
    if key == "KEY_PREFIX" and callable(value):
        return ""
    if not isinstance(value, str) or not value:
        return "must be a non-empty text"
    path = value.split(".")
    if key != "KEY_PREFIX" or (len(path) > 1 and all(map(str.isidentifier, path))):
        return ""
    if not value.endswith(":") or not value.isprintable() or " " in value or len(value) > 50:
        # Blanks separate the parts of an entry in the Redis queues.
        return (
            "must be printable, without blanks, at most 50 characters and end with a colon, or be a function that"
            " returns the tenant, or its dotted path"
        )
    return ""


_DEFAULTS = Settings()


@cache
def get_settings() -> Settings:
    """Return the current settings. Raises ``ImproperlyConfigured`` with every problem, before anything is stored."""
    given: Any = getattr(django_settings, "TASKLOCK", {})
    if found := problems(given):
        raise ImproperlyConfigured(" ".join(f"{what} {hint}" for what, hint in found))
    if isinstance(given.get("LOCATION"), list):
        given = {**given, "LOCATION": tuple(given["LOCATION"])}
    return Settings(**given)


def spans(timeout: Timeout, lease: LeaseTime, name: str) -> tuple[int, int | None]:
    """Return timeout and lease in milliseconds, with defaults filled in.

    Raises ``TaskLockError`` for an invalid one, and for a lease that is longer than the timeout.
    """
    settings = get_settings()
    if timeout is DEFAULT and lease is DEFAULT:
        return settings.default_spans
    wanted = settings.TIMEOUT if timeout is DEFAULT or (timeout is None and lease is None) else timeout
    if wanted is None and lease is None:  # the setting is None, and a lock without a lease needs a timeout
        wanted = _DEFAULTS.TIMEOUT
    hold = UNTIL_RELEASED if wanted is None else milliseconds(wanted, "timeout", name=name)
    if lease is None:
        return hold, None
    if lease is DEFAULT:
        return hold, min(hold, milliseconds(settings.LEASE, "LEASE"))
    ttl = milliseconds(lease, "lease", name=name)
    if ttl > hold:
        raise TaskLockError(
            f"lease ({lease}) of lock {name!r} is longer than its timeout ({hold / 1000:g} s): the lease is renewed"
            " until the timeout, so make it shorter, or pass lease=None for a lock that is not renewed",
            name=name,
        )
    return hold, ttl


def _forget(*, setting: str, **kwargs: object) -> None:
    if setting == "TASKLOCK":
        get_settings.cache_clear()


# On import, not in ready(): the settings also apply before Django is set up, and without the app.
setting_changed.connect(_forget, dispatch_uid="tasklock.conf")
