"""Who may do what, and how often: the permissions of the admin and nothing by default; the project's rates, or ours."""

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
"""May look."""
RELEASE = (*VIEW, "tasklock.release_lock")
"""May ask and release: as in the admin, who acts is shown what it does."""
VIEW_LIMITS = ("tasklock.view_ratelimit",)
"""May look at limiters."""
CHANGE_LIMITS = (*VIEW_LIMITS, "tasklock.change_ratelimit")
"""May reset and change limits, and release permits."""
VIEW_MESSAGES = ("tasklock.view_parkedmessage",)
"""May look at parked messages."""
CHANGE_MESSAGES = (*VIEW_MESSAGES, "tasklock.change_parkedmessage")
"""May publish, requeue and discard them."""
VIEW_AUDIT = ("tasklock.view_auditentry",)
"""May read the audit trail."""
RATES = {"tasklock_view": "600/min", "tasklock_release": "120/min"}
"""Where ``REST_FRAMEWORK["DEFAULT_THROTTLE_RATES"]`` does not name the scope; ``None`` there means no limit."""

logger = logging.getLogger("django_tasklock")


class MayUseLocks(BasePermission):
    """Whoever is known and has the permissions that the view names in ``permission``.

    The project's ``DEFAULT_PERMISSION_CLASSES`` are not asked: they are ``AllowAny`` until somebody changes them.
    """

    def has_permission(self, request: Request, view: Any) -> bool:
        """Return whether this request may be answered."""
        user = request.user
        if not user or not user.is_authenticated or not hasattr(user, "has_perm"):  # not every user model has it
            return False
        if isinstance(user, KeyUser):
            self.message = scope_missing(user.key, scope_for(view.permission))
        return all(user.has_perm(one) for one in view.permission)


class LockThrottle(SimpleRateThrottle):
    """Counts each user and each key apart, in the default cache, per ``throttle_scope`` of the view.

    A cache that fails limits nobody: it may well be on the store that an operator has come to look after.
    """

    def __init__(self) -> None:
        """Do nothing yet: the scope is the view's."""

    def allow_request(self, request: Request, view: Any) -> bool:
        """Return whether this one is within the rate."""
        self.scope = view.throttle_scope
        self.rate = self.get_rate()
        self.num_requests, self.duration = self.parse_rate(self.rate)
        try:
            return bool(super().allow_request(request, view))
        except Exception as error:  # every cache has its own
            logger.warning("REST requests are not limited: the default cache fails (%s)", type(error).__name__)
            return True

    def get_rate(self) -> str | None:
        """Return the project's rate, else ours."""
        rates: dict[str, str | None] = {**RATES, **api_settings.DEFAULT_THROTTLE_RATES}
        return rates[str(self.scope)]

    def get_cache_key(self, request: Request, view: Any) -> str:
        """Return one key per caller and scope. Only those come here who may use the view."""
        who = getattr(request.user, "pk", request.user)
        ident = hashlib.sha256(str(who).encode()).hexdigest()  # memcached takes no spaces, no umlauts
        return str(self.cache_format % {"scope": self.scope, "ident": ident})
