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
        from django_tasklock import checks, metrics
        from django_tasklock.celery.install import install

        checks.register()
        install()
        metrics.install()
