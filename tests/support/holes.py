"""Two who believe that they hold one lock, because a replica was promoted that had not got it."""

from __future__ import annotations

import time

from django_tasklock import BackendUnavailable
from tests.support.stores import eventually
from tests.support.workers import Worker

__all__ = ["CLAIM", "patiently"]

CLAIM = """
    lock = TaskLock({name!r}, lease=60, timeout=600, blocking_timeout=30)
    assert lock.acquire()
    claim = Claim.take(Video, {pk}, GUARD, lock.token)
"""


def patiently(worker: Worker, code: str) -> float:
    """Run ``code`` there as soon as the store answers; the seconds that took."""
    began = time.monotonic()

    def done() -> bool:
        try:
            worker.do(code)
        except BackendUnavailable:
            return False
        return True

    eventually(done, 30)
    return time.monotonic() - began
