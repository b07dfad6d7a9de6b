"""Requests to all instances and their answers. An operation is a generator of requests (``Question``)."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple, TypeVar

from django_tasklock.backends.redis.errors import unavailable
from django_tasklock.backends.redis.script import Script
from django_tasklock.exceptions import BackendUnavailable

T = TypeVar("T")


class Answer(NamedTuple):
    """The answer of one instance. ``error``: why it has none. ``doubt``: an earlier attempt may have been executed."""

    reply: Any = None
    error: Exception | None = None
    sent: bool = False
    """Whether the request may have been executed although there is no reply: it is lost or late."""
    doubt: bool = False


NOT_SENT = Answer(error=ConnectionError("not asked"))
"""The answer of an instance that was not asked."""
Answers = Sequence[Answer]


class Question(NamedTuple):
    """One request to all instances, or ``only`` to some."""

    script: Script
    tail: bytes
    enough: Callable[[Answers], bool] | None = None
    """Return whether the answers so far decide, so that the others need not be waited for."""
    again: bool = True
    """Whether instances that failed are asked again if fewer than a majority answered."""
    only: frozenset[int] | None = None
    patient: bool = False
    """Whether the other instances are waited for as long as for the majority."""


class Pause(NamedTuple):
    """Seconds to sleep."""

    seconds: float


Verb = Generator["Question | Pause", Answers, T]
"""An operation: it yields requests, is sent their answers, and returns its result."""


def replies(answers: Answers) -> list[Any]:
    """Return the replies of the instances that answered."""
    return [answer.reply for answer in answers if answer.error is None]


def too_few(answers: Answers, needed: int) -> BackendUnavailable:
    """Return the error for a request that no majority answered, or on which the answers do not agree."""
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
