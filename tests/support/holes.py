"""Two who believe that they hold one lock, because a replica was promoted that had not got it."""

from __future__ import annotations

import time
from typing import Any

import pytest

from django_tasklock import BackendUnavailable, LockLost, StaleClaim
from django_tasklock.types import Released
from tests.support.guards import states
from tests.support.stores import eventually
from tests.support.workers import Worker

__all__ = ["claims", "row_judges"]

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


def claims(worker: Worker, name: str, row: Any) -> None:
    """Take the lock and the row, and write to it."""
    worker.do(CLAIM.format(name=name, pk=row.pk))
    worker.do("claim.update(progress=10)")


def row_judges(a: Worker, b: Worker, name: str, row: Any) -> float:
    """Let ``b`` take what ``a`` holds, as soon as it can, and finish. Fail unless only ``b`` writes, and ``a`` is told.

    Return the seconds until ``b`` had the lock, which it keeps.
    """
    took = patiently(b, CLAIM.format(name=name, pk=row.pk))
    assert a.do("lock.held") is b.do("lock.held") is True  # the hole
    b.do("claim.update(progress=50)")
    for write in ("claim.update(progress=99)", "claim.finish()"):
        with pytest.raises(StaleClaim, match="newer claim"):
            a.do(write)
    assert states(row) == ("processing", 50, 2)
    with pytest.raises(LockLost):
        a.do("lock.ensure_held()")
    assert a.do("lock.held, lock.lost") == (False, True)
    b.do("lock.ensure_held()\nclaim.finish()")
    assert states(row) == ("ready", 50, 2)
    assert b.do("lock.fence") > a.do("lock.fence")
    assert a.do("lock.release()") is Released.NOT_YOURS
    return took
