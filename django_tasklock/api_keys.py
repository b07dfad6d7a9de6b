"""API keys: the validated form of ``TASKLOCK["API_KEYS"]``, with the scopes of each key."""

from __future__ import annotations

import difflib
import hashlib
import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

Scope = Literal["read", "release", "limits", "messages", "audit"]
"""``read``: read locks, limits, messages and metrics. ``release``: request the release of locks, release them, start a
sweep. ``limits``: change, pause and reset limits, release permits. ``messages``: publish, requeue and discard parked
messages. ``audit``: read the audit trail, which names people."""
SCOPES: tuple[Scope, ...] = get_args(Scope)
"""All scopes."""
FIELDS = ("secret", "may")
"""The fields of a key that does not have all scopes."""
_HINT = (
    "Write {'grafana': <secret>, ...}: texts, neither of them empty."
    ' Or {"grafana": {"secret": ..., "may": ["read"]}}.'
)


@dataclass(frozen=True)
class ApiKey:
    """A named key."""

    name: str
    secret: str = field(repr=False)
    scopes: frozenset[str] = frozenset(SCOPES)

    @property
    def digest(self) -> bytes:
        """The hash that is compared, so that the length of the secret does not matter."""
        return hashlib.sha256(self.secret.encode()).digest()


def keys_of(given: Mapping[str, Any]) -> tuple[ApiKey, ...]:
    """Return the keys of a valid setting. Blanks around a secret are removed."""
    return tuple(
        ApiKey(name, said["secret"].strip(), frozenset(said["may"]))
        if isinstance(said, Mapping)
        else ApiKey(name, said.strip())
        for name, said in given.items()
    )


def find_key(given: bytes, keys: Iterable[ApiKey]) -> ApiKey | None:
    """Return the first key whose secret is ``given``; ``None`` if there is none.

    It compares the digests of all keys in constant time, so that the time does not tell anything about them.
    """
    digest = hashlib.sha256(given).digest()
    found = None
    for key in keys:
        if hmac.compare_digest(key.digest, digest) and found is None:
            found = key
    return found


def problems(given: object) -> list[tuple[str, str]]:
    """Return the problems of the setting, each as a message and a hint. They contain no secret: they are logged."""
    if not isinstance(given, Mapping):
        return [(f"TASKLOCK['API_KEYS'] must be a dict of names and secrets, not {type(given).__name__}.", _HINT)]
    found = []
    for name, said in given.items():
        if not isinstance(name, str) or not name.strip():
            return [(f"TASKLOCK['API_KEYS'] has a name that is no text, or empty ({type(name).__name__}).", _HINT)]
        where = f"TASKLOCK['API_KEYS'][{name!r}]"
        if isinstance(said, Mapping):
            found += _fields(where, said)
        elif wrong := _no_secret(said):
            found.append((f"{where} {wrong}.", _HINT))
    return found


def _fields(where: str, said: Mapping[Any, Any]) -> list[tuple[str, str]]:
    found = []
    for word in said:
        if word not in FIELDS:
            # The key may be a secret in the wrong place, so it is shown only if it resembles a field.
            near = difflib.get_close_matches(word, FIELDS, n=1) if isinstance(word, str) else []
            what = f"has a field {word!r}, which is none" if near else "has a field that is none"
            found.append((f"{where} {what}.", f"Did you mean {near[0]!r}?" if near else _HINT))
    if wrong := _no_secret(said.get("secret")) if "secret" in said else "is missing":
        found.append((f"{where}['secret'] {wrong}.", _HINT))
    may = said.get("may")
    known = ", ".join(map(repr, SCOPES))
    if not isinstance(may, list | tuple | set | frozenset) or not may:
        what = "is missing" if "may" not in said else "is empty" if may in ([], (), set()) else "is no list"
        found.append((f"{where}['may'] {what}.", f"List what this key may do, of: {known}."))
        return found
    for scope in may:
        if scope not in SCOPES:
            near = difflib.get_close_matches(scope, SCOPES, n=1) if isinstance(scope, str) else []
            short = isinstance(scope, str) and scope.isalpha() and len(scope) <= 12  # no secret is
            shown = repr(scope) if near or short else f"a value ({type(scope).__name__})"
            hint = f"Did you mean {near[0]!r}?" if near else f"Known: {known}."
            found.append((f"{where}['may'] has {shown}, which is no scope.", hint))
    return found


def _no_secret(given: object) -> str:
    if not isinstance(given, str):
        return f"is no text but {type(given).__name__}"
    return "" if given.strip() else "is empty"
