"""A localisation site as its authors wrote it: its own decorator for tasks, and a lock on each repository."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import redis
from celery import shared_task
from django.http import HttpRequest, HttpResponse
from redis.exceptions import ConnectionError as RedisIsDown, LockError

from tests.support import environment

logger = logging.getLogger(__name__)
client = redis.Redis.from_url(os.environ[environment.REDIS])


def git(*words: str) -> None:
    """Stands in for what is done in a repository."""


def locked_task(key: str, *, timeout: int = 7200, wait: float = 0) -> Callable[[Callable[..., Any]], Any]:
    """Make a task that runs once at a time per key, which is filled from its arguments."""

    def decorate(function: Callable[..., Any]) -> Any:
        @shared_task(name=f"{function.__module__}.{function.__name__}")
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            lock = client.lock(key.format(*args, **kwargs), timeout=timeout)
            try:
                if not lock.acquire(blocking=wait > 0, blocking_timeout=wait or None):
                    return {"status": "skipped"}
            except RedisIsDown:
                logger.warning("%s runs without its lock", key)
                return function(*args, **kwargs)
            try:
                return function(*args, **kwargs)
            finally:
                try:
                    lock.release()
                except (LockError, RedisIsDown):
                    logger.warning("%s had lost its lock", key)

        return run

    return decorate


class RepositoryBusy(Exception):
    """Somebody else works in it."""


@contextmanager
def repository(component: str, *, wait: float = 5) -> Iterator[None]:
    """Work in the repository of a component, alone."""
    lock = client.lock(f"repository:{component}", timeout=600)
    if not lock.acquire(blocking_timeout=wait):
        raise RepositoryBusy(component)
    try:
        yield
    finally:
        try:
            lock.release()
        except LockError:
            logger.warning("the lock on %s was lost", component)


@locked_task("sync:{0}")
def sync(project: str, force: bool = False) -> str:
    """Fetch what programmers wrote, and push what translators did."""
    with repository(f"{project}/main"):
        git("fetch", project)
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
    except RepositoryBusy:
        return HttpResponse("somebody else works in it, try again", status=409)
    return HttpResponse("committed")
