"""Tools for tests of code that uses locks, limits and once-tasks. See docs/testing.md.

With pytest the fixture ``tasklock`` is this module, and keeps the test's locks in memory; with ``unittest`` use
``TaskLockTestMixin``.

    def test_a_report_is_not_written_twice_at_once(tasklock):
        with tasklock.lock_held("report:2026-01-01"):
            assert build_report("2026-01-01")["status"] == "skipped"

    def test_a_report_is_written_again_after_a_crash(tasklock):
        holder = tasklock.lock_held("report:2026-01-01")
        holder.kill()
        tasklock.advance(60)
        assert build_report("2026-01-01") == "written"

Nothing here changes what other processes see, so tests may run in parallel. A Redis or a database is not emptied.
"""

from __future__ import annotations

from django_tasklock.testing.asserts import assert_locked, assert_not_locked
from django_tasklock.testing.loss import kill_holder, lose, overtake
from django_tasklock.testing.mixin import TaskLockTestMixin
from django_tasklock.testing.others import HeldLock, LockWaiter, UsedLimit, limit_reached, lock_held, lock_waiting
from django_tasklock.testing.process import REMEMBERING, forget, reset
from django_tasklock.testing.stores import advance, memory_store, store_down

__all__ = [
    "REMEMBERING",
    "HeldLock",
    "LockWaiter",
    "TaskLockTestMixin",
    "UsedLimit",
    "advance",
    "assert_locked",
    "assert_not_locked",
    "forget",
    "kill_holder",
    "limit_reached",
    "lock_held",
    "lock_waiting",
    "lose",
    "memory_store",
    "overtake",
    "reset",
    "store_down",
]
