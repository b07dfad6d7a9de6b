"""The check for django-health-check 4 (the extra ``health``): name it in the ``checks`` of its view.

HealthCheckView.as_view(checks=["health_check.Database", "django_tasklock.health.plugins.Locks"])
"""

from __future__ import annotations

import dataclasses

from health_check.base import HealthCheck
from health_check.exceptions import ServiceUnavailable, ServiceWarning

from django_tasklock.health.store import check_locks


@dataclasses.dataclass
class Locks(HealthCheck):
    """Checks that the lock store answers and leases are renewed here. ``strict``: warnings are errors too."""

    strict: bool = dataclasses.field(default=False, repr=False)

    def run(self) -> None:
        """Raise ``ServiceUnavailable`` if it fails or, if strict, ``ServiceWarning``."""
        state = check_locks()
        if not state["store"]["reachable"]:
            raise ServiceUnavailable("the lock store does not answer")
        if not state["healthy"]:
            raise ServiceUnavailable("the leases of this process are not renewed")
        if self.strict and state["warnings"]:
            raise ServiceWarning("; ".join(state["warnings"]))
