"""For ``unittest``: a store of its own for each test."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from django_tasklock.testing.asserts import assert_locked, assert_not_locked
from django_tasklock.testing.named import Lockable
from django_tasklock.testing.stores import locks_off, memory_store

if TYPE_CHECKING:
    from unittest import TestCase as Case
else:
    Case = object


class TaskLockTestMixin(Case):
    """Locks, limits and permits of each test in memory, with nothing held, counted or waited for.

    Before the test case in the bases, Django's or ``unittest``'s own:

        class ReportTests(TaskLockTestMixin, TestCase):
            def test_is_not_written_twice_at_once(self):
                with testing.lock_held("report"):
                    self.assertEqual(build_report()["status"], "skipped")

    ``tasklock_store``: ``"memory"``; ``"off"`` grants everything, see ``locks_off``; ``"settings"`` leaves the store
    to the settings.
    """

    tasklock_store: ClassVar[str] = "memory"

    def setUp(self) -> None:
        """Put the store of this test in force."""
        if self.tasklock_store == "memory":
            self.enterContext(memory_store())
        elif self.tasklock_store == "off":
            self.enterContext(locks_off())
        elif self.tasklock_store != "settings":
            raise ValueError(f"tasklock_store must be 'memory', 'off' or 'settings', not {self.tasklock_store!r}")
        super().setUp()

    def assertLocked(self, lock: Lockable) -> None:  # noqa: N802
        """Fail if nobody has the lock: see ``assert_locked``."""
        assert_locked(lock)

    def assertNotLocked(self, lock: Lockable) -> None:  # noqa: N802
        """Fail, saying who has the lock, if anybody has: see ``assert_not_locked``."""
        assert_not_locked(lock)
