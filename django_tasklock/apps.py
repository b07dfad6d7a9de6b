"""The app's configuration: what it installs when Django starts."""

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

from django_tasklock import process


class AfterImport:
    """A finder that calls ``then`` right after the module ``name`` is imported."""

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self.name = name
        self.then = then

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the module's spec with a loader that calls ``then``."""
        if fullname != self.name:
            return None
        with contextlib.suppress(ValueError):  # another thread has removed it
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
    # A child starts with the modules of its parent. Without them each child would import them at its first lock, and
    # waiters for that lock would wait for the import. A process that never forks does not need this.
    from django_tasklock import backends
    from django_tasklock.db import forks

    backends.preload()
    forks.before_fork()


def _after_fork_in_parent() -> None:
    from django_tasklock.db import forks

    forks.after_fork_in_parent()


class TaskLockConfig(AppConfig):
    """``INSTALLED_APPS += ["django_tasklock"]``."""

    name = "django_tasklock"
    label = "tasklock"
    verbose_name = _("Task locks")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the checks, the Celery integration and the metrics. It sends no query and opens no connection.

        The Celery integration is installed when Celery is imported, which may be never.
        """
        import logging

        from django.apps import apps

        from django_tasklock import checks, columns, metrics
        from django_tasklock.db import pools, transactions  # noqa: F401  # both connect to signals of new connections
        from django_tasklock.logs import OneLine

        for model in apps.get_models():  # models that were defined before the import of ``columns``
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
            os.register_at_fork(
                before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=process.begin_anew
            )
