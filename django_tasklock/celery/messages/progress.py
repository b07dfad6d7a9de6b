"""The messages for which a living worker no longer vouches: it gives them back, so that others take them.

A main process lives on while its slots hang, in a read without a time limit or stopped by a signal. Therefore a lease
also needs progress: messages that wait for a slot are given back if no slot has begun or ended anything for
``SLOTS_TIMEOUT``. A running one is not given back before its process has ended (``outlived``).
"""

from __future__ import annotations

import logging
from typing import Any

from celery.worker import state

from django_tasklock.celery.messages.held import unchanged
from django_tasklock.celery.messages.outlived import Outlived
from django_tasklock.celery.request import Request
from django_tasklock.logs import log
from django_tasklock.types import monotonic

SLOTS_TIMEOUT = 300.0
"""Seconds in which slots that do not hang begin or end something. What is given back too early only runs elsewhere."""
SHOWN = 5
"""Tasks that a warning names."""


class Progress:
    """The progress of one worker, whose messages have this lease, in seconds."""

    def __init__(self, lease: float) -> None:
        self._progress = _progress()
        self._progressed = monotonic()
        self._stalled_at: tuple[int, int] | None = None
        self._outlived = Outlived(lease)

    @property
    def stalled(self) -> bool:
        """Whether messages wait, and no slot has begun or ended anything for the timeout: nothing more is fetched."""
        return self._stalled_at is not None and self._stalled_at == _progress()

    @property
    def stuck(self) -> int:
        """The number of messages that wait for stalled slots, or whose tasks outlive their locks."""
        return len(self._outlived) + (len(_waiting()) if self.stalled else 0)

    def hook_into(self, qos: Any) -> None:
        """Fetch nothing while the slots are stalled."""
        can_consume = qos.can_consume
        qos.can_consume = lambda: not self.stalled and can_consume()

    def review(self) -> list[Any]:
        """Look at the slots, once per renewal. Return the messages to be put back into their queues now."""
        self._outlived.review()
        given_back = self._waiting_for_nothing()
        if given_back:
            log(logging.WARNING, "messages: %d given back: %s", len(given_back), _describe(given_back))
        return [request.message for request in given_back]

    def _waiting_for_nothing(self) -> list[Request]:
        """Give back the requests that wait for a slot, if none has gone on for the timeout."""
        now, progress, waiting = monotonic(), _progress(), _waiting()
        if not waiting or progress != self._progress:
            self._progress, self._progressed, self._stalled_at = progress, now, None
            return []
        if now - self._progressed < SLOTS_TIMEOUT:
            return []
        if self._stalled_at is None:
            self._stalled_at = progress
            log(
                logging.WARNING,
                "messages: %d wait, and no slot of this worker has begun or ended anything for %.0f s. They are given"
                " back, and no more are fetched until a slot does. Running: %s",
                len(waiting),
                now - self._progressed,
                _describe(unchanged(lambda: list(state.active_requests))) or "none",
            )
        return [request for request in waiting if request.give_back()]


def _progress() -> tuple[int, int]:
    """Return what changes whenever a slot of this worker begins or ends something."""
    return state.all_total_count[0], len(state.active_requests)


def _waiting() -> list[Request]:
    """Return the requests that wait for a slot, given back or not. One with a countdown, or a rate limit, does not."""
    reserved = unchanged(lambda: list(state.reserved_requests))
    return [one for one in reserved if isinstance(one, Request) and one not in state.active_requests]


def _describe(requests: list[Any]) -> str:
    names = ", ".join(f"{one.name}[{one.id}]" for one in requests[:SHOWN])
    return names + (f" and {len(requests) - SHOWN} more" if len(requests) > SHOWN else "")
