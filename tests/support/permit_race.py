"""Processes that want permits of one limiter, and write down when they have one."""

from __future__ import annotations

import os
import time
from pathlib import Path

__all__ = ["compete"]

SOON = 0.02  # seconds in which others may come in as well
LONGEST = 60.0  # seconds without a turn, or without company on the first, that count as stuck


def compete(store: str, run: str, process: int, limit: int, turns: int, log: str) -> None:
    """Take a permit ``turns`` times and overlap on purpose: the first time until it is as full as it may be."""
    from django.db import connections

    from django_tasklock.types import Busy, Released
    from tests.support.permits import a_request
    from tests.support.stores import make

    backend = make(store)
    file = os.open(log, os.O_RDWR | os.O_APPEND | os.O_CREAT)
    for turn in range(turns):
        ask = a_request(f"permits:{run}", limit)
        ends = time.monotonic() + LONGEST
        with backend.permits.waiter(ask) as waiter:
            while isinstance(waiter.acquire(), Busy):
                assert time.monotonic() < ends, "no turn"
                if waiter.wait(0.2 if backend.permits.wakes else 0.01) is not None:
                    break
        os.write(file, f"enters {process}.{turn}\n".encode())
        if turn < turns - 1:  # at last there may be nobody left to overlap with
            met = time.monotonic() + (SOON if turn else LONGEST)
            while time.monotonic() < met and not _full(log, limit, ever=not turn):
                time.sleep(0.001)
        os.write(file, f"leaves {process}.{turn}\n".encode())
        assert backend.permits.release(ask.name, ask.token) is Released.RELEASED
    os.close(file)
    backend.close()
    connections.close_all()


def _full(log: str, limit: int, *, ever: bool) -> bool:
    inside = 0
    for line in Path(log).read_bytes().splitlines():
        inside += 1 if line.startswith(b"enters") else -1
        if ever and inside >= limit:
            return True
    return inside >= limit
