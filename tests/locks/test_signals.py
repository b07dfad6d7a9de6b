"""A receiver that fails never affects a lock; what happens to one is also in the log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from django_tasklock import ConcurrencyLimiter, TaskLock, signals
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


@pytest.mark.parametrize("kind", [TaskLock, lambda name: ConcurrencyLimiter(name, limit=2)], ids=["lock", "limiter"])
def test_what_is_acquired_and_released_is_logged_at_debug(
    kind: Any, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    settings.TASKLOCK = MEMORY
    caplog.set_level(logging.DEBUG, "django_tasklock")
    with kind("a") as held:
        pass
    acquired, released = (record for record in caplog.records if repr("a") in record.getMessage())
    assert (acquired.levelname, released.levelname) == ("DEBUG", "DEBUG")
    assert acquired.getMessage().startswith(f"{held.noun} 'a' acquired")
    assert released.getMessage() == f"{held.noun} 'a' released"
