"""The ``TASKLOCK`` setting: one dict, read when first needed, read again when it changes.

Never written back to Django's settings; values are handed down as arguments, so
nothing below the core asks for them.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import timedelta
from functools import cache, cached_property
from typing import Any, Final, Literal, get_args

from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed

from django_tasklock.api_keys import ApiKey, keys_of, problems as key_problems
from django_tasklock.exceptions import TaskLockError
from django_tasklock.texts import without_password

Duration = int | float | timedelta
"""Seconds, or a timedelta."""


class _Default(enum.Enum):
    DEFAULT = "the setting"
    __hash__ = object.__hash__  # there is one of it; Enum's is written in Python, and each new lock is looked up by it


DEFAULT: Final = _Default.DEFAULT
"""For a lease or a timeout: what the setting says. ``None`` means no heartbeat, or no timeout."""

LeaseTime = Duration | None | _Default
"""A duration, ``None`` for no heartbeat, or ``DEFAULT``."""

Timeout = Duration | None | _Default
"""A duration, ``None`` for until it is released, or ``DEFAULT``. Without a lease ``None`` is ``DEFAULT``: nobody would
free the lock of a process that died."""

OnConflict = Literal["skip", "raise", "wait", "retry", "reject", "queue", "coalesce"]
"""What is done while the lock is busy. The last four need a message to put aside: only under Celery."""
WORDS = get_args(OnConflict)
"""Those words."""
OnUnavailable = Literal["run", "raise", "skip"]
"""What is done while the store cannot be asked: run without the lock, raise, or skip."""


def milliseconds(value: object, what: str, *, name: str | None = None) -> int:
    """Return a duration as whole milliseconds. Raises ``TaskLockError`` if it is not a positive, finite one."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TaskLockError(f"{what} must be seconds (int, float) or a timedelta, not {value!r}", name=name)
    if not seconds >= 0.001:  # so put, it also refuses NaN
        raise TaskLockError(f"{what} must be a positive number of seconds, at least 0.001, not {value!r}", name=name)
    if seconds > _LONGEST:
        raise TaskLockError(f"{what} may be ten years at most, not {value!r}", name=name)
    return round(seconds * 1000)


_LONGEST = 10 * 366 * 86400
UNTIL_RELEASED: Final = _LONGEST * 1000
"""Milliseconds: what a lock without a timeout is asked for, in every store and every release of this package."""


QUORUM: Final = "django_tasklock.backends.quorum.QuorumBackend"
"""The backend that takes several addresses."""
_OURS = "django_tasklock.backends."


@dataclass(frozen=True)
class Settings:
    """``TASKLOCK`` with its defaults filled in. Seconds."""

    BACKEND: str | None = None
    LOCATION: str | Sequence[str] = field(default="default", repr=False)
    """Alias or URL, which may have a password in it; of ``QuorumBackend`` several: see ``location``."""
    KEY_PREFIX: str = "task_lock:"
    TIMEOUT: Duration | None = 3600
    """``None``: until it is released, or its holder's lease ends."""
    LEASE: Duration = 60
    ON_CONFLICT: OnConflict = "skip"
    ON_UNAVAILABLE: OnUnavailable = "run"
    RATE_LIMITS: Mapping[str, Any] = field(default_factory=dict)
    """Name to rate, ``{"tavily": "100/m"}``, or to a dict of the options of ``RateLimiter``, the rate under "rates"."""
    API_KEYS: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Name to secret, or to ``{"secret": ..., "may": ["read"]}``: who may use the REST API without a user."""
    AUDIT_DAYS: int | None = 365
    """How long the sweep lets entries of the audit trail stay; ``None``: for ever."""
    API_KEY_IN_QUERY: bool = False
    """Also take a key from ``?api_key=``, which ends up in logs."""
    MESSAGE_LEASE: Duration | None = 60
    """Seconds after which a dead Celery worker's messages start again, with Redis as the broker; ``None``: when the
    broker's visibility timeout is over."""
    METRICS: bool = True
    """Let the store count what happens to locks and limiters, by kind."""
    HISTORY: int = 10
    """How many of the last holds of each name the store keeps: those of a second and more, and those that were not
    ended by a release. 0: none."""

    REPLICAS: int = 0
    """How many replicas must have acknowledged that a lock, or a permit, was taken in Redis; else it is given back. See
    docs/sentinel.md for what that does not promise."""

    @property
    def location(self) -> str:
        """The one alias or URL. ``ImproperlyConfigured`` where there are several."""
        if isinstance(self.LOCATION, str):
            return self.LOCATION
        raise ImproperlyConfigured(
            f"TASKLOCK['LOCATION'] has {len(self.LOCATION)} addresses: only {QUORUM!r} takes several."
        )

    @cached_property
    def default_spans(self) -> tuple[int, int]:
        """Timeout and lease in milliseconds: what most locks use."""
        hold = UNTIL_RELEASED if self.TIMEOUT is None else milliseconds(self.TIMEOUT, "TIMEOUT")
        return hold, min(hold, milliseconds(self.LEASE, "LEASE"))

    @cached_property
    def api_keys(self) -> tuple[ApiKey, ...]:
        """The keys of ``API_KEYS``, with what each may do."""
        return keys_of(self.API_KEYS)


EXPIRING = 10_000
"""Milliseconds left of its lease below which a lock is called expiring, at most."""


def expiring() -> int:
    """Return milliseconds left of its lease below which a lock is called expiring: its renewal is overdue.

    Ten seconds, or a sixth of ``LEASE``, where that is less: a healthy lease of that length never comes so far.
    """
    return min(EXPIRING, get_settings().default_spans[1] // 6)


RATE_LIMITS_HINT: Final = "Write {'tavily': '100/m', ...}, or a dict with 'rates' and options in place of the text."
"""What to do about ``RATE_LIMITS`` that cannot be read."""

_CHOICES = {"ON_CONFLICT": WORDS, "ON_UNAVAILABLE": ("run", "raise", "skip")}
_KEYS = tuple(field.name for field in fields(Settings))


def problems(given: object) -> list[tuple[str, str]]:
    """Return what is wrong with a ``TASKLOCK`` dict: (what, what to do) for each finding."""
    if not isinstance(given, Mapping):
        return [(f"TASKLOCK must be a dict, not {type(given).__name__}.", "Write TASKLOCK = {...} in the settings.")]
    found = []
    for key, value in given.items():
        if key not in _KEYS:
            import difflib  # for a slip alone: it is read by every process otherwise

            near = difflib.get_close_matches(str(key).upper(), _KEYS, n=1, cutoff=0.4)
            hint = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(_KEYS)}."
            found.append((f"TASKLOCK has no setting {key!r}.", hint))
            continue
        if key == "API_KEYS":
            found += key_problems(value)
        elif key == "RATE_LIMITS":  # what each of them says is read by the limiter and by the system checks
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
    """Return what is wrong with the number of addresses. Other people's backends may take as many as they like."""
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
    if key == "HISTORY":
        return "" if type(value) is int and 0 <= value <= 1000 else "must be a whole number from 0 to 1000"
    if key == "REPLICAS":
        return "" if type(value) is int and 0 <= value <= 100 else "must be a whole number from 0 to 100"
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
    if key == "LOCATION" and isinstance(value, list | tuple):  # which and how many: see _several
        return "" if all(isinstance(one, str) and one for one in value) else "must be a list of non-empty texts"
    if not isinstance(value, str) or not value:
        return "must be a non-empty text"
    if key == "KEY_PREFIX" and (
        not value.endswith(":") or not value.isprintable() or " " in value or len(value) > 50
    ):  # a blank would end a word of the entries in Redis' queues
        return "must be printable, without blanks, at most 50 characters and end with a colon"
    return ""


_DEFAULTS = Settings()


@cache
def get_settings() -> Settings:
    """Return the settings in force. ``ImproperlyConfigured`` names every finding, before anything is stored."""
    given: Any = getattr(django_settings, "TASKLOCK", {})
    if found := problems(given):
        raise ImproperlyConfigured(" ".join(f"{what} {hint}" for what, hint in found))
    if isinstance(given.get("LOCATION"), list):
        given = {**given, "LOCATION": tuple(given["LOCATION"])}
    return Settings(**given)


def spans(timeout: Timeout, lease: LeaseTime, name: str) -> tuple[int, int | None]:
    """Return timeout and lease in milliseconds, defaults filled in. Raises ``TaskLockError`` for a pair that cannot
    work.
    """
    settings = get_settings()
    if timeout is DEFAULT and lease is DEFAULT:
        return settings.default_spans
    wanted = settings.TIMEOUT if timeout is DEFAULT or (timeout is None and lease is None) else timeout
    if wanted is None and lease is None:  # the setting has none, and this lock needs one
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


setting_changed.connect(_forget, dispatch_uid="tasklock.conf")
