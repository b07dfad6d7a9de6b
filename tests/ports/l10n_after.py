"""The same localisation site, ported: its decorator stays, and passes the key on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery import shared_task
from django.http import HttpRequest, HttpResponse

from django_tasklock import TaskLock, TaskLockAcquireError
from django_tasklock.celery import OnceTask


def git(*words: str) -> None:
    """Stands in for what is done in a repository."""


def locked_task(key: str, *, timeout: int = 7200, wait: float = 0) -> Callable[[Callable[..., Any]], Any]:
    """Make a task that runs once at a time per key, which is filled from its arguments."""
    conflict = {"on_conflict": "wait", "blocking_timeout": wait} if wait else {"on_conflict": "skip"}
    return shared_task(base=OnceTask, key=key, timeout=timeout, on_unavailable="run", **conflict)


def repository(component: str, *, wait: float = 5) -> TaskLock:
    """Work in the repository of a component, alone."""
    return TaskLock(f"repository:{component}", timeout=600, blocking_timeout=wait)


@locked_task("sync:{0}")
def sync(project: str, force: bool = False) -> str:
    """Fetch what programmers wrote, and push what translators did."""
    with repository(f"{project}/main") as lock:
        git("fetch", project)
        lock.ensure_held()  # LockLost: somebody else may work there by now
        git("push", project)
    return "synced"


@locked_task("report:{project}:{day}", wait=0.2)
def report(project: str, day: str) -> str:
    """Count what was translated."""
    git("log", project, day)
    return "counted"


def commit(request: HttpRequest, component: str) -> HttpResponse:
    """The button of a translator."""
    try:
        with repository(component, wait=0.2):
            git("commit", component)
    except TaskLockAcquireError as busy:
        return HttpResponse(f"{busy.holder} works in it, try again", status=409)
    return HttpResponse("committed")
