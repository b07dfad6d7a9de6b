"""API keys: the validated form of ``TASKLOCK["API_KEYS"]``."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

SCOPES = ("read", "all")
"""``read``: look at everything, and read the metrics. ``all``: act as well."""
_HINT = (
    "Write {'grafana': <secret>, ...}: texts, neither of them empty."
    ' Or {"grafana": {"secret": ..., "may": ["read"]}}: a key that only reads; with ["all"] it may do everything.'
)


@dataclass(frozen=True)
class ApiKey:
    """A named key."""

    name: str
    secret: str = field(repr=False)
    acts: bool = True
    """Whether it has the scope ``all``; every key has ``read``."""

    @property
    def digest(self) -> bytes:
        """The hash that is compared, so that the length of the secret does not matter."""
        return hashlib.sha256(self.secret.encode()).digest()


def keys_of(given: Mapping[str, Any]) -> tuple[ApiKey, ...]:
    """Return the keys of a valid setting. Blanks around a secret are removed."""
    return tuple(
        ApiKey(name, said["secret"].strip(), "all" in said["may"])
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
    """Return the problems of the setting, each as a message and a hint.

    They contain nothing that was given but the names of keys: it may be a secret in the wrong place, and they are
    logged.
    """
    if not isinstance(given, Mapping):
        return [(f"TASKLOCK['API_KEYS'] must be a dict of names and secrets, not {type(given).__name__}.", _HINT)]
    found = []
    for name, said in given.items():
        if not isinstance(name, str) or not name.strip():
            return [(f"TASKLOCK['API_KEYS'] has a name that is no text, or empty ({type(name).__name__}).", _HINT)]
        fields = dict(said) if isinstance(said, Mapping) else {"secret": said, "may": ["all"]}
        secret, may = fields.pop("secret", None), fields.pop("may", None)
        wrong = []
        if not isinstance(secret, str) or not secret.strip():
            wrong.append("has no secret: a text that is not empty")
        if not isinstance(may, list | tuple | set | frozenset) or not may or any(one not in SCOPES for one in may):
            wrong.append(f"['may'] must be a list of {' or '.join(map(repr, SCOPES))}")
        if fields:
            wrong.append("has a field other than 'secret' and 'may'")
        found += [(f"TASKLOCK['API_KEYS'][{name!r}]{'' if one[0] == '[' else ' '}{one}.", _HINT) for one in wrong]
    return found
