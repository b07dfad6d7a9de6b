"""Named API keys: who comes with which secret. Nothing here knows of HTTP."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from typing import Any

__all__ = ["PERMISSIONS", "KeyUser", "owner"]

PERMISSIONS = frozenset(
    f"tasklock.{codename}" for codename in ("view_lock", "release_lock", "view_ratelimit", "change_ratelimit")
)
"""What a key may do."""


def owner(given: bytes, keys: Mapping[str, str]) -> str | None:
    """The name of the key that ``given`` is; ``None`` if it is none of them.

    Every key is compared, in constant time, also after one has matched; digests are compared, so that a
    key's length does not tell either.
    """
    digest = hashlib.sha256(given).digest()
    found = None
    for name, secret in keys.items():
        wanted = hashlib.sha256(secret.strip().encode()).digest()
        if hmac.compare_digest(wanted, digest) and found is None:
            found = name
    return found


class KeyUser:
    """Who a request with an API key is: no row of any table, may use the end points of this API, nothing else."""

    is_authenticated = True
    is_anonymous = False
    is_active = True
    is_staff = False
    is_superuser = False

    def __init__(self, name: str) -> None:
        self.name = name
        self.pk = self.id = f"key:{name}"

    def get_username(self) -> str:
        """``key grafana``: what the audit trail calls it."""
        return f"key {self.name}"

    def has_perm(self, perm: str, obj: Any = None) -> bool:
        """Whether it is one of the permissions on locks and limiters."""
        return perm in PERMISSIONS

    def __str__(self) -> str:
        return self.get_username()
