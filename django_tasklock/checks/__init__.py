"""System checks. Only those of ``check --deploy`` use the network. Documented in docs/checks.md.

Each check is imported when it runs, because most processes of a project run none.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from django.core import checks

TAG = "tasklock"
CHECKS = (
    "settings.check_settings",
    "settings.check_api_keys",
    "settings.check_tenants",
    "store.check_backend",
    "store.check_shared",
    "guards.check_guards",
)
"""Paths of the checks, relative to this package."""
DEPLOY_CHECKS = (
    "deploy.check_store",
    "deploy.check_tables",
    "tasks.check_unguarded",
    "tasks.check_visibility",
    "tasks.check_late_acknowledgement",
    "tasks.check_message_lease",
)
"""Paths of the checks that run with ``check --deploy`` only."""


def register() -> None:
    """Register every check of this package; repeated calls register each check once."""
    for path in CHECKS:
        checks.register(lazy_check(path), TAG)
    for path in DEPLOY_CHECKS:
        checks.register(lazy_check(path), TAG, deploy=True)


@cache
def lazy_check(path: str) -> Any:
    """Return a check that imports the one at ``path`` when it runs, and has its name."""
    home, name = path.split(".")

    def check(app_configs: Any = None, **kwargs: Any) -> Any:
        """Import the check and run it."""
        return getattr(import_module(f"{__name__}.{home}"), name)(app_configs, **kwargs)

    check.__name__ = check.__qualname__ = name
    return check
