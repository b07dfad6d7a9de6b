"""System checks. Only those of ``check --deploy`` go over the network. Documented in docs/checks.md."""

from __future__ import annotations

from django.core import checks

from django_tasklock.checks.deploy import check_store, check_tables, check_unguarded
from django_tasklock.checks.guards import check_guards
from django_tasklock.checks.limits import check_limits, check_limits_kept
from django_tasklock.checks.messages import check_message_lease
from django_tasklock.checks.settings import check_api_keys, check_settings
from django_tasklock.checks.store import check_backend, check_shared
from django_tasklock.checks.tasks import check_late_acknowledgement, check_visibility

__all__ = [
    "check_api_keys",
    "check_backend",
    "check_guards",
    "check_late_acknowledgement",
    "check_limits",
    "check_limits_kept",
    "check_message_lease",
    "check_settings",
    "check_shared",
    "check_store",
    "check_tables",
    "check_unguarded",
    "check_visibility",
    "register",
]

TAG = "tasklock"


def register() -> None:
    """Register every check of this package."""
    for check in (
        check_settings,
        check_api_keys,
        check_backend,
        check_shared,
        check_limits_kept,
        check_limits,
        check_guards,
    ):
        checks.register(check, TAG)
    for check in (
        check_store,
        check_tables,
        check_unguarded,
        check_visibility,
        check_late_acknowledgement,
        check_message_lease,
    ):
        checks.register(check, TAG, deploy=True)
