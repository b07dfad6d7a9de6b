"""Who may call, and how often: API keys, the admin's permissions, and rates of our own."""

from __future__ import annotations

import hashlib
import logging
from typing import Any

from django.utils.translation import gettext as _
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import AuthenticationFailed, Throttled
from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.settings import api_settings
from rest_framework.throttling import SimpleRateThrottle

from django_tasklock.api_keys import ApiKey
from django_tasklock.authentication import CHALLENGE, KeyRefused, authenticate
from django_tasklock.conf import get_settings
from django_tasklock.rest.table import END_POINTS

READ = frozenset(permission for point in END_POINTS if not point.acts for permission in point.permissions)
"""The permissions of every key."""
ALL = READ.union(*(point.permissions for point in END_POINTS))
"""The permissions of a key that may act."""
RATES = {"tasklock_view": "600/min", "tasklock_release": "120/min"}
"""Rates of scopes that ``REST_FRAMEWORK["DEFAULT_THROTTLE_RATES"]`` does not name; ``None`` there means no limit."""

logger = logging.getLogger("django_tasklock")


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
        """Return whether the key has the permission."""
        return perm in (ALL if self.key.acts else READ)

    def __str__(self) -> str:
        return self.get_username()


class MayUse(BasePermission):
    """Allows authenticated callers that have all permissions of the end point.

    The project's ``DEFAULT_PERMISSION_CLASSES`` are ignored, because by default they are ``AllowAny``.
    """

    def has_permission(self, request: Request, view: Any) -> bool:
        """Return whether the caller may use the end point."""
        user = request.user
        if not user or not user.is_authenticated or not hasattr(user, "has_perm"):  # not every user model has has_perm
            return False
        if isinstance(user, KeyUser):
            text = _("Key %(name)r may not do this: it needs the scope %(scope)r (TASKLOCK['API_KEYS']).")
            self.message = text % {"name": user.key.name, "scope": "all"}
        return all(user.has_perm(one) for one in view.point.permissions)


class Throttle(SimpleRateThrottle):
    """Counts requests per caller, reading and acting ones apart, in the default cache.

    If the cache fails nothing is throttled: it may share the store whose failure the operator is investigating.
    """

    def __init__(self) -> None:
        """Do nothing: the scope is only known with the view."""

    def allow_request(self, request: Request, view: Any) -> bool:
        """Return whether the request is within the rate."""
        self.scope = "tasklock_release" if view.point.acts else "tasklock_view"
        self.rate = self.get_rate()
        self.num_requests, self.duration = self.parse_rate(self.rate)
        try:
            return bool(super().allow_request(request, view))
        except Exception as error:  # each cache backend raises its own
            logger.warning("REST requests are not limited: the default cache fails (%s)", type(error).__name__)
            return True

    def get_rate(self) -> str | None:
        """Return the project's rate, or else our default."""
        rates: dict[str, str | None] = {**RATES, **api_settings.DEFAULT_THROTTLE_RATES}
        return rates[str(self.scope)]

    def get_cache_key(self, request: Request, view: Any) -> str:
        """Return a cache key per caller and scope. Permissions have been checked before."""
        who = getattr(request.user, "pk", request.user)
        ident = hashlib.sha256(str(who).encode()).hexdigest()  # memcached allows neither spaces nor non-ASCII
        return str(self.cache_format % {"scope": self.scope, "ident": ident})
