"""Help for tests of code that uses locks, limits and once-tasks: see docs/testing.md.

With pytest the fixture ``tasklock`` is this module, and the test's locks are in memory; with ``unittest`` it is
``TaskLockTestMixin`` that sees to that.

    def test_a_report_is_not_written_twice_at_once(tasklock):
        with tasklock.lock_held("report:2026-01-01"):
            assert build_report("2026-01-01")["status"] == "skipped"

    def test_a_report_is_written_again_after_a_crash(tasklock):
        holder = tasklock.lock_held("report:2026-01-01")
        holder.kill()
        tasklock.advance(60)
        assert build_report("2026-01-01") == "written"

Nothing here touches what other processes see: a Redis or a database is emptied as you empty it otherwise. So tests
may run in parallel.
"""

from __future__ import annotations

from django_tasklock.testing.asserts import assert_locked, assert_not_locked
from django_tasklock.testing.loss import kill_holder, lose, lose_lock, overtake
from django_tasklock.testing.mixin import TaskLockTestMixin
from django_tasklock.testing.others import HeldLock, LockWaiter, UsedLimit, limit_reached, lock_held, lock_waiting
from django_tasklock.testing.process import REMEMBERING, forget, reset
from django_tasklock.testing.stores import advance, locks_off, memory_store, store_down

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
    "locks_off",
    "lose",
    "lose_lock",
    "memory_store",
    "overtake",
    "reset",
    "store_down",
]
