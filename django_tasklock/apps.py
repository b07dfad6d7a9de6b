"""Wiring: what must happen once, when Django starts."""

from __future__ import annotations

import os
import sys

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _

AFTER_FORK = (
    "django_tasklock.locks.holder",
    "django_tasklock.locks.lease",
    "django_tasklock.locks.heartbeat",
    "django_tasklock.locks.registry",
    "django_tasklock.backends",
    "django_tasklock.backends.memory.store",
    "django_tasklock.rates.background",
    "django_tasklock.rates.watch",
    "django_tasklock.rates.terms",
    "django_tasklock.db.pools",
    "django_tasklock.metrics",
)
"""Modules whose ``after_fork()`` is called in a forked child, in this order, if they were imported: who the child is
comes first, then what it must not believe that it has."""


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
        """Register checks, teach the core about Celery, begin to count. No query, no connection."""
        import logging

        from django.apps import apps

        from django_tasklock import checks, columns, metrics
        from django_tasklock.celery.receivers import install
        from django_tasklock.db import pools
        from django_tasklock.logs import OneLine

        for model in apps.get_models():  # those that were made before ours could be imported
            columns.protect(model)
        checks.register()
        install()
        pools.install()
        metrics.install()
        logging.getLogger("django_tasklock").addFilter(OneLine())
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=_after_fork)
