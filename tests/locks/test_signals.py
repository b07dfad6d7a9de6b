"""A receiver that fails never affects a lock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from django_tasklock import TaskLock, signals
from tests.support.guards import MEMORY


def fails(**details: Any) -> None:
    raise ZeroDivisionError


class Fails:
    def __call__(self, **details: Any) -> None:
        raise ZeroDivisionError


@pytest.fixture(params=[fails, partial(fails), Fails()], ids=["function", "partial", "object"])
def receiver(request: Any, settings: Any) -> Iterator[Callable[..., None]]:
    """A receiver that fails; Django itself fails at naming the latter two in its log."""
    settings.TASKLOCK = MEMORY
    signals.lock_acquired.connect(request.param)
    yield request.param
    signals.lock_acquired.disconnect(request.param)


def test_the_lock_is_taken_and_the_failure_logged(
    receiver: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    with TaskLock("a") as lock:
        assert lock.held
    assert not lock.held
    assert [record for record in caplog.records if record.exc_info and "ZeroDivisionError" in caplog.text]
