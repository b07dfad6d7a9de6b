"""Members of chains, groups and chords: each way to meet a busy lock, as a ``OnceTask`` and decorated."""

from __future__ import annotations

from typing import Any

from celery import shared_task

from django_tasklock import task_lock
from django_tasklock.celery import OnceTask
from tests.support.celery_site.journal import journaled
from tests.support.celery_site.tasks import BY_SETTINGS, hold_here

__all__ = ["WORDS", "gather", "once_member", "other"]

WORDS = ("skip", "raise", "wait", "retry", "reject", "queue", "coalesce")


@shared_task
def gather(results: Any = None) -> Any:
    """The end of it all."""
    with journaled("gathered"):
        return results


@shared_task
def other(number: int = 0) -> int:
    """Knows nothing of locks."""
    return number


@shared_task(base=OnceTask, key="member:{key}", **BY_SETTINGS)
def once_member(key: str, number: int = 0, until: str | None = None) -> int:
    """One at a time."""
    hold_here(key, until=until)
    return number


def _decorated(word: str) -> None:
    def member(key: str, number: int = 0, until: str | None = None) -> int:
        hold_here(key, until=until)
        return number

    locked = task_lock("member:{key}", on_conflict=word)  # type: ignore[arg-type]
    shared_task(name=f"{__name__}.{word}_member")(locked(member))


for _word in WORDS:
    _decorated(_word)
