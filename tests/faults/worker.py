"""One worker: it takes any of the first rows that are not done, until it is told that the run is over.

Workers are forked from a server that has imported this module, with Django and all, and owns nothing.
"""

from __future__ import annotations

import os
import random
import signal
import time
from itertools import count
from typing import Any

from tests.faults import site

site.set_up()

from tests.faults.locks import AWAY, WAYS, Session  # noqa: E402
from tests.testapp.models import Video  # noqa: E402

__all__ = ["AHEAD", "JOURNAL", "OVER", "main"]

JOURNAL, OVER = "journal", "over"
AHEAD = 5
"""Rows that all workers choose from at a time, so that several want the same."""
HOUR = 3600


def step_the_clock(*signal: object) -> None:
    """Let this process believe that it is an hour later, or, the next time, an hour earlier."""
    global _step
    _step = -_step
    now, step = _clock, _step
    time.time = lambda: now() + step


_clock, _step = time.time, -HOUR


def main(way: str, seed: str) -> None:
    """Work."""
    signal.signal(signal.SIGUSR1, step_the_clock)
    journal = os.open(site.folder() / JOURNAL, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(event: str, session: Session, *more: Any) -> None:
        words = map(str, (time.monotonic(), event, session.name, session.pk, *more))
        os.write(journal, ("\t".join(words) + "\n").encode())

    random.seed(seed)
    for number in count():
        if (site.folder() / OVER).exists():
            return
        session = Session(0, f"{os.getpid()}-{number}", note)
        try:
            due = Video.objects.exclude(status="ready").order_by("pk")[:AHEAD]
            session.pk = random.choice([row.pk for row in due])
            WAYS[way](session)
        except AWAY as error:
            note("away", session, type(error).__name__)
            time.sleep(0.05)
