"""System checks. Only those of ``check --deploy`` go over the network. Documented in docs/checks.md.

Each is imported when it is run: most processes of a project run none.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from django.core import checks

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
Check = Callable[..., list[checks.CheckMessage]]


def _imported_later(home: str, name: str) -> Check:
    def check(app_configs: Any = None, **kwargs: Any) -> list[checks.CheckMessage]:
        """Import the check of this name, and run it."""
        run: Check = getattr(import_module(f"{__name__}.{home}"), name)
        return run(app_configs, **kwargs)

    check.__name__ = check.__qualname__ = name
    return check


check_settings = _imported_later("settings", "check_settings")
check_api_keys = _imported_later("settings", "check_api_keys")
check_backend = _imported_later("store", "check_backend")
check_shared = _imported_later("store", "check_shared")
check_limits_kept = _imported_later("limits", "check_limits_kept")
check_limits = _imported_later("limits", "check_limits")
check_guards = _imported_later("guards", "check_guards")
check_store = _imported_later("deploy", "check_store")
check_tables = _imported_later("deploy", "check_tables")
check_unguarded = _imported_later("deploy", "check_unguarded")
check_visibility = _imported_later("tasks", "check_visibility")
check_late_acknowledgement = _imported_later("tasks", "check_late_acknowledgement")
check_message_lease = _imported_later("messages", "check_message_lease")


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
