"""What a verb asks of all instances, and what they answered. A verb is a generator of questions, which threads and
event loops send in their own ways.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple, TypeVar

from django_tasklock.backends.redis.errors import unavailable
from django_tasklock.backends.redis.script import Script
from django_tasklock.exceptions import BackendUnavailable

T = TypeVar("T")


class Answer(NamedTuple):
    """What one instance said. ``error``: why it did not. ``doubt``: an earlier sending may have been executed."""

    reply: Any = None
    error: Exception | None = None
    sent: bool = False
    """Whether it may have been executed, the answer lost or late."""
    doubt: bool = False


NOT_SENT = Answer(error=ConnectionError("not asked"))
"""Of an instance that was left out."""
Answers = Sequence[Answer]


class Question(NamedTuple):
    """One question to all instances, or ``only`` to some."""

    script: Script
    tail: bytes
    enough: Callable[[Answers], bool] | None = None
    """Whether what has been answered decides: the other answers are not waited for then."""
    again: bool = True
    """Whether those who could not answer are asked again, if they are too many."""
    only: frozenset[int] | None = None
    patient: bool = False
    """Whether the others are waited for when a majority has answered, as long as for that."""


class Pause(NamedTuple):
    """Seconds to sleep."""

    seconds: float


Verb = Generator["Question | Pause", Answers, T]
"""A verb: it yields what is to be asked, is sent the answers, and returns its result."""


def replies(answers: Answers) -> list[Any]:
    """Return what was said."""
    return [answer.reply for answer in answers if answer.error is None]


def too_few(answers: Answers, needed: int) -> BackendUnavailable:
    """Return what a caller is told if no majority has answered, or those that have do not agree."""
    said = sum(answer.error is None for answer in answers)
    errors = [answer.error for answer in answers if answer.error is not None and answer is not NOT_SENT]
    doubt = any(answer.sent or answer.error is None for answer in answers)
    first = errors[0] if errors else ConnectionError("no answer")
    cause = unavailable(first, doubt)
    missing = f"{needed} are needed" if said < needed else f"and are not of one mind, as {needed} would have to be"
    text = f"{said} of {len(answers)} Redis instances answered, {missing}: {cause}"
    error = BackendUnavailable(text, doubt=doubt, down=cause.down)
    error.__cause__ = first
    return error
