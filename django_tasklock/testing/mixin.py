"""``TaskLockTestMixin``: a store of its own for each test, for ``unittest``."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from django_tasklock.db.transactions import known_as_test
from django_tasklock.testing.asserts import assert_locked, assert_not_locked
from django_tasklock.testing.named import Lockable
from django_tasklock.testing.stores import memory_store

if TYPE_CHECKING:
    from unittest import TestCase as Case
else:
    Case = object


class TaskLockTestMixin(Case):
    """Keeps the locks, limits and permits of each test in a memory store that is empty at its start.

    Before the test case in the bases, Django's or ``unittest``'s own:

        class ReportTests(TaskLockTestMixin, TestCase):
            def test_is_not_written_twice_at_once(self):
                with testing.lock_held("report"):
                    self.assertEqual(build_report()["status"], "skipped")

    ``tasklock_store = "settings"`` leaves the store to the settings.
    """

    tasklock_store: ClassVar[str] = "memory"

    def setUp(self) -> None:
        """Install the store of this test."""
        self.enterContext(known_as_test())
        if self.tasklock_store == "memory":
            self.enterContext(memory_store())
        elif self.tasklock_store != "settings":
            raise ValueError(f"tasklock_store must be 'memory' or 'settings', not {self.tasklock_store!r}")
        super().setUp()

    def assertLocked(self, lock: Lockable) -> None:  # noqa: N802
        """Fail if the lock is free. See ``assert_locked``."""
        assert_locked(lock)

    def assertNotLocked(self, lock: Lockable) -> None:  # noqa: N802
        """Fail, with the holder in the message, if the lock is held. See ``assert_not_locked``."""
        assert_not_locked(lock)
