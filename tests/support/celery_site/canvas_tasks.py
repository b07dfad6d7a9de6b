"""Members of chains, groups and chords: each way to meet a busy lock, as a ``OnceTask`` and decorated."""

from __future__ import annotations

from typing import Any

from celery import chord, shared_task

from django_tasklock import StateGuard, model_lock, task_lock
from django_tasklock.celery import OnceTask
from tests.support.celery_site.journal import journaled
from tests.support.celery_site.tasks import BY_SETTINGS, hold_here
from tests.testapp.models import Video

__all__ = ["WORDS", "cut_film", "gather", "once_member", "other"]

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


# Of docs/guard.md


@shared_task
@model_lock(Video, guard=StateGuard(claim_from=["uploading"], claim_as="cutting", done="encoding", failed="failed"))
def cut_film(film_id: int, part: str = "encodes") -> None:
    """Leaves its row to ``join_film``."""
    end = join_film.si(film_id).on_error(give_up.si(film_id))
    chord([encode_part.si(part) for _ in range(3)], end).delay()


@shared_task
def encode_part(how: str) -> None:
    """Encodes, or fails."""
    if how == "fails":
        raise ValueError("codec")


@shared_task
@model_lock(
    Video,
    on_conflict="retry",
    guard=StateGuard(claim_from=["encoding", "closing"], claim_as="closing", done="ready", failed="failed"),
)
def join_film(film_id: int) -> None:
    """Ends what ``cut_film`` has begun."""
    with journaled(film_id):
        pass


@shared_task
def give_up(film_id: int) -> None:
    """A part has failed."""
    Video.objects.filter(pk=film_id, status="encoding").update(status="failed")
