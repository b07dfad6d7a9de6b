"""Who may do what: the permissions of the admin, and nothing by default."""

from __future__ import annotations

from typing import Any

from rest_framework.permissions import BasePermission
from rest_framework.request import Request

__all__ = ["CHANGE_LIMITS", "RELEASE", "VIEW", "VIEW_LIMITS", "MayUseLocks"]

VIEW = ("tasklock.view_lock",)
"""May look."""
RELEASE = (*VIEW, "tasklock.release_lock")
"""May ask and release: as in the admin, who acts is shown what it does."""
VIEW_LIMITS = ("tasklock.view_ratelimit",)
"""May look at limiters."""
CHANGE_LIMITS = (*VIEW_LIMITS, "tasklock.change_ratelimit")
"""May reset and change limits, and release permits."""


class MayUseLocks(BasePermission):
    """Whoever is known and has the permissions that the view names in ``permission``.

    The project's ``DEFAULT_PERMISSION_CLASSES`` are not asked: they are ``AllowAny`` until somebody changes them.
    """

    def has_permission(self, request: Request, view: Any) -> bool:
        """Whether this request may be answered."""
        user = request.user
        if not user or not user.is_authenticated or not hasattr(user, "has_perm"):  # not every user model has it
            return False
        return all(user.has_perm(one) for one in view.permission)
