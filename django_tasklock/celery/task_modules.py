"""The import of the project's task modules: decorated tasks are known only after their modules were imported."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from celery.app import app_or_default
from celery.loaders.app import AppLoader
from django.utils.module_loading import autodiscover_modules

logger = logging.getLogger("django_tasklock")

SKIP_CHECKS = "CELERY_SKIP_CHECKS"

_lock = threading.RLock()
_imported: WeakKeyDictionary[Any, tuple[str, ...]] = WeakKeyDictionary()


def import_task_modules() -> tuple[str, ...]:
    """Import the task modules that a worker imports, once per process. Return the reasons for imports that failed.

    If the project has an app, Celery's own way: autodiscovery, ``imports`` and ``include``. Otherwise the ``tasks``
    module of every installed app. A failed import ends it, and is logged once; the guards of what was not imported are
    unknown to this process. In a worker, which could not do its work, it raises what failed.
    """
    app = app_or_default()
    with _lock:
        if app not in _imported:
            _imported[app] = ()  # for calls during the import, by system checks for instance
            _imported[app] = _import(app)
        return _imported[app]


def _import(app: Any) -> tuple[str, ...]:
    try:
        if not isinstance(app.loader, AppLoader):
            autodiscover_modules("tasks")
        elif not app.loader.worker_initialized:
            with _no_checks():
                app.loader.import_default_modules()
        app.finalize()  # binds the tasks, which registers the guards of task classes
    except Exception as error:
        if app.loader.worker_initialized:
            raise  # to Celery it is finalized, with tasks missing: a worker that went on would drop their messages
        text = f"a task module of the Celery app {app.main!r} cannot be imported here: {type(error).__name__}: {error}"
        logger.warning("%s; the guards in it are not known to this process", text, exc_info=error)
        return (text,)
    return ()


@contextmanager
def _no_checks() -> Iterator[None]:
    """Make Celery skip the project's system checks, which it runs before it imports."""
    if os.environ.get(SKIP_CHECKS):
        yield
        return
    os.environ[SKIP_CHECKS] = "1"
    try:
        yield
    finally:
        del os.environ[SKIP_CHECKS]
