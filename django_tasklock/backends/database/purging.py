"""Deletion of old rows at twice the rate at which rows are added, by each process for the rows that it adds."""

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
    """Decides when this process purges a table: ``purge(limit)`` deletes up to ``limit`` old rows."""

    def __init__(self, session: Session, purge: Callable[[int], object]) -> None:
        self._session = session
        self.purge = purge
        self.rows = random.randrange(EVERY)  # random, so that processes which add one row and end purge now and then
        """The number of rows added since the last purge."""

    def count_row(self) -> None:
        """Record that this process has added a row."""
        self.rows += 1

    def purge_if_due(self, factor: int = 1) -> None:
        """Purge if enough rows were added since the last purge: ``EVERY`` times ``factor``.

        Errors are logged, not raised: they are not the caller's, and the next purge deletes the rows.
        """
        added = self.rows
        if added < EVERY * factor or connections[self._session.alias].in_atomic_block:
            return  # the open block is that of a TestCase, which may count statements
        self.rows = 0
        try:
            self.purge(2 * added)
        except (TaskLockError, ImproperlyConfigured):
            logger.debug("old rows of the %s table were not purged", self._session.what, exc_info=True)
