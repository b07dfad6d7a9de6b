"""Authentication by a named API key, for REST framework."""

from __future__ import annotations

from typing import Any

from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import AuthenticationFailed, Throttled
from rest_framework.request import Request

from django_tasklock.api_keys import ApiKey, Scope
from django_tasklock.authentication import CHALLENGE, KeyRefused, authenticate
from django_tasklock.conf import get_settings

PERMISSIONS: dict[Scope, frozenset[str]] = {
    "read": frozenset({"tasklock.view_lock", "tasklock.view_ratelimit", "tasklock.view_parkedmessage"}),
    "release": frozenset({"tasklock.view_lock", "tasklock.release_lock"}),
    "limits": frozenset({"tasklock.view_ratelimit", "tasklock.change_ratelimit"}),
    "messages": frozenset({"tasklock.view_parkedmessage", "tasklock.change_parkedmessage"}),
    "audit": frozenset({"tasklock.view_auditentry"}),
}
"""The permissions of each scope; those that act include reading, because answers show the lock or limiter."""


class ApiKeyAuthentication(BaseAuthentication):
    """Authenticates with the named keys of ``TASKLOCK["API_KEYS"]``. Without any keys it is off, not open.

    Needs no CSRF token, since a browser never sends a key by itself. The first of the two headers is used, then the
    query string if ``TASKLOCK["API_KEY_IN_QUERY"]`` is set.
    """

    def authenticate(self, request: Request) -> tuple[KeyUser, None] | None:
        """Return the key's user; ``None`` without a key. Raises ``AuthenticationFailed`` for an unknown key, and
        ``Throttled`` after too many of them.
        """
        try:
            key = authenticate(request)
        except KeyRefused as refused:
            if refused.retry_after is not None:
                raise Throttled(refused.retry_after) from None
            raise AuthenticationFailed(str(refused)) from None
        return None if key is None else (KeyUser(key), None)

    def authenticate_header(self, request: Request) -> str:
        """Return the ``WWW-Authenticate`` header of a 401; empty while there are no keys."""
        return CHALLENGE if get_settings().API_KEYS else ""


class KeyUser:
    """The user of a request with an API key: in no table, and limited to the end points of this API."""

    is_authenticated = True
    is_anonymous = False
    is_active = True
    is_staff = False
    is_superuser = False

    def __init__(self, key: ApiKey) -> None:
        self.key = key
        self.pk = self.id = f"key:{key.name}"

    def get_username(self) -> str:
        """Return ``key grafana``, the name in the audit trail."""
        return f"key {self.key.name}"

    def has_perm(self, perm: str, obj: Any = None) -> bool:
        """Return whether one of the key's scopes includes the permission."""
        return any(perm in PERMISSIONS[scope] for scope in PERMISSIONS if scope in self.key.scopes)

    def __str__(self) -> str:
        return self.get_username()


def scope_for(permissions: tuple[str, ...]) -> Scope:
    """Return the first scope that includes all these permissions."""
    return next(scope for scope, given in PERMISSIONS.items() if given.issuperset(permissions))
