"""Wiring: what must happen once, when Django starts."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _

AFTER_FORK = (
    "django_tasklock.locks.holder",
    "django_tasklock.locks.lease",
    "django_tasklock.locks.owner",
    "django_tasklock.locks.heartbeat",
    "django_tasklock.locks.registry",
    "django_tasklock.backends",
    "django_tasklock.backends.memory.store",
    "django_tasklock.rates.background",
    "django_tasklock.rates.watch",
    "django_tasklock.rates.terms",
    "django_tasklock.db.pools",
    "django_tasklock.db.forks",
    "django_tasklock.metrics",
)
"""Modules whose ``after_fork()`` is called in a forked child, in this order, if they were imported: who the child is
comes first, then what it must not believe that it has."""


class AfterImport:
    """A finder of modules that calls ``then`` right after the module ``name`` was imported, whoever does so."""

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self.name = name
        self.then = then

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find what others find, and add to it."""
        if fullname != self.name:
            return None
        with contextlib.suppress(ValueError):  # another thread was faster
            sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            execute = loader.exec_module

            def execute_and_then(module: ModuleType) -> None:
                execute(module)
                self.then()

            loader.exec_module = execute_and_then
        return spec


def _install_celery() -> None:
    from django_tasklock.celery.receivers import install

    install()


def _before_fork() -> None:
    # Children that are forked begin with what their parent has imported; each of them would import it at its first
    # lock, and whoever waits for that lock meanwhile would wait for the import. A parent that never forks need not.
    from django_tasklock import backends
    from django_tasklock.db import forks

    backends.preload()
    forks.before_fork()


def _after_fork_in_parent() -> None:
    from django_tasklock.db import forks

    forks.after_fork_in_parent()


def _after_fork() -> None:
    for name in AFTER_FORK:
        module = sys.modules.get(name)
        if module is not None:
            module.after_fork()


class TaskLockConfig(AppConfig):
    """``INSTALLED_APPS += ["django_tasklock"]``."""

    name = "django_tasklock"
    label = "tasklock"
    verbose_name = _("Task locks")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register checks, teach the core about Celery, begin to count. No query, no connection.

        Where nobody has imported Celery yet, it is taught when somebody does, and not at all where nobody does.
        """
        import logging

        from django.apps import apps

        from django_tasklock import checks, columns, metrics
        from django_tasklock.db import pools, transactions  # noqa: F401  # both note connections that are made
        from django_tasklock.logs import OneLine

        for model in apps.get_models():  # those that were made before ours could be imported
            columns.protect(model)
        checks.register()
        if "celery" in sys.modules:
            _install_celery()
        else:
            sys.meta_path.insert(0, AfterImport("celery", _install_celery))
        pools.install()
        metrics.install()
        logging.getLogger("django_tasklock").addFilter(OneLine())
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork)
