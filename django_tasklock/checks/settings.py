"""Checks of the ``TASKLOCK`` dict itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.apps import apps
from django.conf import settings as django_settings
from django.core import checks
from django.core.exceptions import ImproperlyConfigured

from django_tasklock.conf import Settings, get_settings, milliseconds, problems
from django_tasklock.rates.options import rate_problems

SHORTEST_LEASE = 1500
"""Milliseconds. A lease is renewed after a third of it, and one unanswered request takes 900 ms."""
SHORTEST_KEY = 32


def valid_settings() -> Settings | None:
    """Return the settings in force; ``None`` if E001 reports them."""
    try:
        settings = get_settings()
    except ImproperlyConfigured:
        return None
    return None if rate_problems(settings.RATE_LIMITS) else settings


def check_settings(app_configs: Any = None, **kwargs: Any) -> list[checks.CheckMessage]:
    """Report E001: an unknown or ill-typed key of ``TASKLOCK``. W006: a lease shorter than one slow reply."""
    configured = getattr(django_settings, "TASKLOCK", {})
    found: list[checks.CheckMessage] = [
        checks.Error(what, hint=hint, id="tasklock.E001") for what, hint in _all_problems(configured)
    ]
    settings = valid_settings()
    if settings is None:
        return found
    hold, lease = settings.default_spans[0], milliseconds(settings.LEASE, "LEASE")
    if lease < min(SHORTEST_LEASE, hold):
        found.append(
            checks.Warning(
                f"TASKLOCK['LEASE'] is {lease / 1000:g} s: one slow answer of the store, and a live holder has lost its"
                " lock.",
                hint=f"A lease is renewed when a third of it is over. Take {SHORTEST_LEASE / 1000:g} s or more.",
                id="tasklock.W006",
            )
        )
    return found


def check_tenants(app_configs: Any = None, **kwargs: Any) -> list[checks.CheckMessage]:
    """Report E008: a project with a schema per tenant, and no function in ``KEY_PREFIX`` that tells them apart."""
    settings = valid_settings()
    if settings is None:
        return []
    hint = "Name a function that returns the tenant's schema, 'KEY_PREFIX': 'project.tenants.name': docs/tenants.md."
    try:
        if settings.tenant_function is not None:
            return []
    except ImproperlyConfigured as error:
        return [checks.Error(str(error), hint=hint, id="tasklock.E008")]
    return [
        checks.Error(
            f"{app!r} is installed, and TASKLOCK['KEY_PREFIX'] is one for all tenants: their rows 42 have one lock.",
            hint=hint,
            id="tasklock.E008",
        )
        for app in ("django_tenants", "tenant_schemas")
        if apps.is_installed(app)
    ]


def _all_problems(configured: Any) -> list[tuple[str, str]]:
    found = problems(configured)
    limits = configured.get("RATE_LIMITS") if isinstance(configured, Mapping) else None
    return found + (rate_problems(limits) if isinstance(limits, Mapping) else [])


def check_api_keys(app_configs: Any = None, **kwargs: Any) -> list[checks.CheckMessage]:
    """Report W008: an API key that can be guessed. Keys are never printed."""
    settings = valid_settings()
    return (
        []
        if settings is None
        else [
            checks.Warning(
                f"TASKLOCK['API_KEYS'][{_masked_name(key.name)}] has {len(key.secret)} characters: it can be guessed.",
                hint='Make one with: python -c "import secrets; print(secrets.token_urlsafe(32))"',
                id="tasklock.W008",
            )
            for key in settings.api_keys
            if len(key.secret) < SHORTEST_KEY
        ]
    )


def _masked_name(name: str) -> str:
    # A name as long as a key: name and key were probably swapped, so do not print it.
    return repr(name) if len(name) < SHORTEST_KEY else "..."
