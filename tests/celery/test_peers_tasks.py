"""Where a ``OnceTask`` differs from celery-once and celery-singleton on purpose. docs/comparison.md has it for readers.

``unique="until_finish"`` is what both do; ``until_start`` is celery-once's ``unlock_before_run``. What is alike stands
in ``test_unique.py`` and ``test_once_keys.py``.
"""

from __future__ import annotations

from typing import Any

import pytest

from django_tasklock import TaskLockError
from tests.support.guards import elsewhere

pytest_plugins = ["tests.support.once_fixtures"]


class TestDifferences:
    def test_publishing_again_is_no_error_by_default(self, app) -> None:
        """celery-once raises ``AlreadyQueued``: most callers want the result of the one that is there."""
        task = app.task(lambda: "done", unique="until_finish")
        assert task.delay().id == task.delay().id
        assert task.apply().get() == "done"  # as there: ``apply`` runs it, whatever is queued

    def test_two_messages_never_run_at_once_even_if_both_were_published(self, app) -> None:
        """There the lock is the publisher's alone: what is published twice, or delivered twice, runs twice at once."""
        ran: list[Any] = []
        task = app.task(lambda: ran.append(elsewhere(app.run)), key="a", unique="until_finish")
        task.delay()
        task.once(unique=None).delay()
        app.run()
        assert len(ran) == 1
        assert app.all() == []

    def test_their_options_are_refused_with_what_to_write(self, app) -> None:
        for theirs in ({"once": {"keys": ["a"]}}, {"unique_on": ["a"]}):
            with pytest.raises(TaskLockError, match="key="):
                app.task(lambda a: None, **theirs)
