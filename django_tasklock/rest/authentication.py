"""Requests with a named API key, for REST framework."""

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
"""What each scope lets a key do: as in the admin, who acts is shown what it does."""


class ApiKeyAuthentication(BaseAuthentication):
    """Named keys from ``TASKLOCK["API_KEYS"]``. Without any this is off, not open.

    Needs no CSRF token: a browser never sends a key by itself. The first of the two headers counts, then
    the query string if ``TASKLOCK["API_KEY_IN_QUERY"]`` says so.
    """

    def authenticate(self, request: Request) -> tuple[KeyUser, None] | None:
        """Return who it is; ``None`` without a key; ``AuthenticationFailed`` for a key that is not ours, ``Throttled``
        for one too many of them.
        """
        try:
            key = authenticate(request)
        except KeyRefused as refused:
            if refused.retry_after is not None:
                raise Throttled(refused.retry_after) from None
            raise AuthenticationFailed(str(refused)) from None
        return None if key is None else (KeyUser(key), None)

    def authenticate_header(self, request: Request) -> str:
        """Return what to send, said beside a 401; empty while there are no keys."""
        return CHALLENGE if get_settings().API_KEYS else ""


class KeyUser:
    """Who a request with an API key is: no row of any table, may use the end points of this API, nothing else."""

    is_authenticated = True
    is_anonymous = False
    is_active = True
    is_staff = False
    is_superuser = False

    def __init__(self, key: ApiKey) -> None:
        self.key = key
        self.pk = self.id = f"key:{key.name}"

    def get_username(self) -> str:
        """Return ``key grafana``: what the audit trail calls it."""
        return f"key {self.key.name}"

    def has_perm(self, perm: str, obj: Any = None) -> bool:
        """Return whether it is one of the permissions on locks and limiters that its scopes give."""
        return any(perm in PERMISSIONS[scope] for scope in PERMISSIONS if scope in self.key.scopes)

    def __str__(self) -> str:
        return self.get_username()


def scope_for(permissions: tuple[str, ...]) -> Scope:
    """Return the scope that a key needs where these permissions are asked for: the first that has them all."""
    return next(scope for scope, given in PERMISSIONS.items() if given.issuperset(permissions))
