"""The import of the project's task modules: what is decorated in them is known only to whoever has imported them."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any
from weakref import WeakKeyDictionary

from celery.app import app_or_default
from celery.loaders.app import AppLoader
from django.apps import apps
from django.utils.module_loading import module_has_submodule

logger = logging.getLogger("django_tasklock")

SKIP_CHECKS = "CELERY_SKIP_CHECKS"

_lock = threading.RLock()
_imported: WeakKeyDictionary[Any, tuple[str, ...]] = WeakKeyDictionary()


def import_task_modules() -> tuple[str, ...]:
    """Import what a worker imports, once in a process. Return why some of it failed.

    Celery's own way where the project has an app: what it discovers, ``imports`` and ``include``. Without one the
    ``tasks`` module of every installed app. What cannot be imported is logged, once; its guards are not known here.
    """
    app = app_or_default()
    if app not in _imported:
        with _lock:
            if app not in _imported:
                _imported[app] = ()  # for whoever asks in the middle: system checks, say
                _imported[app] = _celerys(app) if isinstance(app.loader, AppLoader) else _everybodys()
    return _imported[app]


def _celerys(app: Any) -> tuple[str, ...]:
    try:
        if not app.loader.worker_initialized:
            with _no_checks():
                app.loader.import_default_modules()
        app.finalize()  # binds the tasks: a class tells of its guard then
    except Exception as error:
        return (_told(f"a task module of the Celery app {app.main!r}", error),)
    return ()


def _everybodys() -> tuple[str, ...]:
    found = []
    for config in apps.get_app_configs():
        if config.module is not None and module_has_submodule(config.module, "tasks"):
            try:
                import_module(f"{config.name}.tasks")
            except Exception as error:
                found.append(_told(f"{config.name}.tasks", error))
    try:
        app_or_default().finalize()
    except Exception as error:
        found.append(_told("the tasks", error))
    return tuple(found)


def _told(what: str, error: Exception) -> str:
    text = f"{what} cannot be imported here: {type(error).__name__}: {error}"
    logger.warning("%s; the guards in it are not known to this process", text, exc_info=error)
    return text


@contextmanager
def _no_checks() -> Iterator[None]:
    """Tell Celery not to run all system checks of the project before it imports."""
    if os.environ.get(SKIP_CHECKS):
        yield
        return
    os.environ[SKIP_CHECKS] = "1"
    try:
        yield
    finally:
        del os.environ[SKIP_CHECKS]
