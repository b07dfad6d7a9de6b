"""System checks. Only those of ``check --deploy`` go over the network. Documented in docs/checks.md.

Each is imported when it is run: most processes of a project run none.
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
    "store.check_backend",
    "store.check_shared",
    "limits.check_limits_kept",
    "limits.check_limits",
    "guards.check_guards",
)
"""Checks by their modules in this package."""
DEPLOY_CHECKS = (
    "deploy.check_store",
    "deploy.check_tables",
    "tasks.check_unguarded",
    "tasks.check_visibility",
    "tasks.check_late_acknowledgement",
    "messages.check_message_lease",
)
"""The same of those that ``check --deploy`` alone runs."""


def register() -> None:
    """Register every check of this package, each once however often this is called."""
    for path in CHECKS:
        checks.register(imported_later(path), TAG)
    for path in DEPLOY_CHECKS:
        checks.register(imported_later(path), TAG, deploy=True)


@cache
def imported_later(path: str) -> Any:
    """Return a check that imports the one at ``path`` when it is run, and has its name."""
    home, name = path.split(".")

    def check(app_configs: Any = None, **kwargs: Any) -> Any:
        """Import the check of this name, and run it."""
        return getattr(import_module(f"{__name__}.{home}"), name)(app_configs, **kwargs)

    check.__name__ = check.__qualname__ = name
    return check
