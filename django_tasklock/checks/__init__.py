"""System checks. Only those of ``check --deploy`` use the network. Documented in docs/checks.md."""

from __future__ import annotations

from django.core import checks

from django_tasklock.checks import deploy, guards, settings, store, tasks

TAG = "tasklock"
CHECKS = (
    settings.check_settings,
    settings.check_api_keys,
    settings.check_tenants,
    store.check_backend,
    store.check_shared,
    guards.check_guards,
)
DEPLOY_CHECKS = (
    deploy.check_store,
    deploy.check_tables,
    deploy.check_sweeps,
    tasks.check_unguarded,
    tasks.check_visibility,
    tasks.check_late_acknowledgement,
    tasks.check_message_lease,
)
"""The checks that run with ``check --deploy`` only."""


def register() -> None:
    """Register every check of this package; repeated calls register each check once."""
    for check in CHECKS:
        checks.register(check, TAG)
    for check in DEPLOY_CHECKS:
        checks.register(check, TAG, deploy=True)
