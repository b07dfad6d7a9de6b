"""Requests with a named API key: ``Authorization: Api-Key <key>`` or ``X-API-Key: <key>``."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from typing import Any

from django.utils.translation import gettext_lazy as _
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from django_tasklock.conf import get_settings

SCHEME = "api-key"
IN_QUERY = "api_key"
"""The parameter of a key in the query string, where that is switched on."""
PERMISSIONS = frozenset(
    f"tasklock.{codename}" for codename in ("view_lock", "release_lock", "view_ratelimit", "change_ratelimit")
)
"""What a key may do."""


class ApiKeyAuthentication(BaseAuthentication):
    """Named keys from ``TASKLOCK["API_KEYS"]``. Without any this is off, not open.

    Needs no CSRF token: a browser never sends a key by itself. The first of the two headers counts, then
    the query string if ``TASKLOCK["API_KEY_IN_QUERY"]`` says so.
    """

    def authenticate(self, request: Request) -> tuple[KeyUser, None] | None:
        """Return who it is; ``None`` without a key; ``AuthenticationFailed`` for a key that is not ours."""
        settings = get_settings()
        given = _given(request, settings.API_KEY_IN_QUERY) if settings.API_KEYS else None
        if given is None:
            return None
        name = owner(given, settings.API_KEYS)
        if name is None:
            raise AuthenticationFailed(_("This API key is not known here."))
        return KeyUser(name), None

    def authenticate_header(self, request: Request) -> str:
        """Return what to send, said beside a 401; empty while there are no keys."""
        return 'Api-Key realm="tasklock"' if get_settings().API_KEYS else ""


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
        """Return ``key grafana``: what the audit trail calls it."""
        return f"key {self.name}"

    def has_perm(self, perm: str, obj: Any = None) -> bool:
        """Return whether it is one of the permissions on locks and limiters."""
        return perm in PERMISSIONS

    def __str__(self) -> str:
        return self.get_username()


def owner(given: bytes, keys: Mapping[str, str]) -> str | None:
    """Return the name of the key that ``given`` is; ``None`` if it is none of them.

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


def _given(request: Request, in_query: bool) -> bytes | None:
    authorization = _bytes(request.META.get("HTTP_AUTHORIZATION", ""))
    scheme, _space, key = authorization.partition(b" ")
    if scheme.lower() == SCHEME.encode():
        return key.strip()
    if "HTTP_X_API_KEY" in request.META:
        return _bytes(request.META["HTTP_X_API_KEY"]).strip()
    if in_query and IN_QUERY in request.query_params:
        return str(request.query_params[IN_QUERY]).strip().encode(errors="replace")
    return None


def _bytes(header: str) -> bytes:
    """Return a header as it was sent: WSGI and ASGI hand its bytes over as Latin-1."""
    try:
        return header.encode("latin-1")
    except UnicodeEncodeError:  # a test client, which sends text
        return header.encode(errors="replace")
