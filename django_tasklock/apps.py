"""The app's configuration: what it installs when Django starts."""

from __future__ import annotations

import os

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _

from django_tasklock import process


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
        """Register the checks and the Celery integration. It sends no query and opens no connection.

        It imports Celery, which takes 0.16 s in a process that did not import it before.
        """
        import logging

        from django.apps import apps

        from django_tasklock import checks, columns
        from django_tasklock.celery import receivers
        from django_tasklock.db import pools
        from django_tasklock.logs import OneLine

        for model in apps.get_models():  # models that were defined before the import of ``columns``
            columns.protect(model)
        checks.register()
        receivers.install()
        pools.install()
        logging.getLogger("django_tasklock").addFilter(OneLine())
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(
                before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=process.begin_anew
            )
