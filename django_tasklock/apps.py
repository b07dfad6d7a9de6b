"""Wiring: what must happen once, when Django starts."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _

__all__ = ["TaskLockConfig"]


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
