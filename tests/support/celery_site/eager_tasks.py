"""Tasks that call themselves, with the lock they have: by every word, directly, eagerly, as each kind."""

from __future__ import annotations

from typing import Any

from celery import shared_task
from celery.exceptions import Reject

from django_tasklock import TaskLockError, task_lock
from django_tasklock.celery import OnceTask
from tests.support.celery_site.canvas_tasks import WORDS
from tests.support.celery_site.journal import journaled

__all__ = ["WAYS"]

WAYS = ("call", "apply", "delay")
"""``delay`` where tasks are always eager."""


def _body(task: Any, key: str, way: str, inner: bool) -> Any:
    with journaled(key):
        if inner:
            return "ran"
        try:
            answer = task(key, way, True) if way == "call" else getattr(task, way)(*_arguments(key, way))
        except (TaskLockError, Reject) as error:
            return type(error).__name__
        if way == "call":
            return answer
        return type(answer.result).__name__ if isinstance(answer.result, BaseException) else answer.result


def _arguments(key: str, way: str) -> tuple[Any, ...]:
    return ((key, way, True),) if way == "apply" else (key, way, True)


for _word in WORDS:

    @shared_task(name=f"{__name__}.once_{_word}", base=OnceTask, bind=True, key="self:{key}", on_conflict=_word)
    def _once(self: Any, key: str, way: str, inner: bool = False) -> Any:
        return _body(self, key, way, inner)

    @shared_task(name=f"{__name__}.decorated_{_word}", bind=True)
    @task_lock("self:{key}", on_conflict=_word)
    def _decorated(self: Any, key: str, way: str, inner: bool = False) -> Any:
        return _body(self, key, way, inner)
