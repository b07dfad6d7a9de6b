"""Permissions and throttling of the API: the admin's permissions are required; the project's rates, or our defaults."""

from __future__ import annotations

import hashlib
import logging
from typing import Any

from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.settings import api_settings
from rest_framework.throttling import SimpleRateThrottle

from django_tasklock.authentication import scope_missing
from django_tasklock.rest.authentication import KeyUser, scope_for

VIEW = ("tasklock.view_lock",)
"""Required to read locks."""
RELEASE = (*VIEW, "tasklock.release_lock")
"""Required to release locks or request it; includes reading, because answers show the lock."""
VIEW_LIMITS = ("tasklock.view_ratelimit",)
"""Required to read limiters."""
CHANGE_LIMITS = (*VIEW_LIMITS, "tasklock.change_ratelimit")
"""Required to reset and change limits, and to release permits."""
VIEW_MESSAGES = ("tasklock.view_parkedmessage",)
"""Required to read parked messages."""
CHANGE_MESSAGES = (*VIEW_MESSAGES, "tasklock.change_parkedmessage")
"""Required to publish, requeue and discard parked messages."""
VIEW_AUDIT = ("tasklock.view_auditentry",)
"""Required to read the audit trail."""
RATES = {"tasklock_view": "600/min", "tasklock_release": "120/min"}
"""Rates of scopes that ``REST_FRAMEWORK["DEFAULT_THROTTLE_RATES"]`` does not name; ``None`` there means no limit."""

logger = logging.getLogger("django_tasklock")


class MayUseLocks(BasePermission):
    """Allows authenticated callers that have all permissions in the view's ``permission``.

    The project's ``DEFAULT_PERMISSION_CLASSES`` are ignored, because by default they are ``AllowAny``.
    """

    def has_permission(self, request: Request, view: Any) -> bool:
        """Return whether the caller may use the view."""
        user = request.user
        if not user or not user.is_authenticated or not hasattr(user, "has_perm"):  # not every user model has has_perm
            return False
        if isinstance(user, KeyUser):
            self.message = scope_missing(user.key, scope_for(view.permission))
        return all(user.has_perm(one) for one in view.permission)


class LockThrottle(SimpleRateThrottle):
    """Counts requests per user or key and ``throttle_scope`` of the view, in the default cache.

    If the cache fails nothing is throttled: it may share the store whose failure the operator is investigating.
    """

    def __init__(self) -> None:
        """Do nothing: the scope is only known with the view."""

    def allow_request(self, request: Request, view: Any) -> bool:
        """Return whether the request is within the rate."""
        self.scope = view.throttle_scope
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
