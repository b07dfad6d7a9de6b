"""Old rows go at twice the rate at which new ones come, whatever that is and however many processes add them."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable

from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from django_tasklock.db.session import Session
from django_tasklock.exceptions import TaskLockError

logger = logging.getLogger("django_tasklock")

EVERY = 64  # rows added by one process between two purges


class Purging:
    """When one process purges a table: ``purge(limit)`` deletes up to ``limit`` rows that nobody needs any more."""

    def __init__(self, session: Session, purge: Callable[[int], object]) -> None:
        self._session = session
        self.purge = purge
        self.rows = random.randrange(EVERY)  # a process that adds one row and ends does its share, too
        """How many were added since the last time."""

    def added(self) -> None:
        """Note that this process has added a row."""
        self.rows += 1

    def purge_if_due(self, patience: int = 1) -> None:
        """Purge if enough rows were added since the last time, ``patience`` times as many as usual.

        It never fails: whoever calls it has something else to do, and another time will do.
        """
        added = self.rows
        if added < EVERY * patience or connections[self._session.alias].in_atomic_block:
            return  # in a block: that of a TestCase, which may count statements
        self.rows = 0
        try:
            self.purge(2 * added)
        except (TaskLockError, ImproperlyConfigured):
            logger.debug("old rows of the %s table were not purged", self._session.what, exc_info=True)
