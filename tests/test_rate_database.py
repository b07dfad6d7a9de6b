"""Rate limits over processes that share a database and no Redis."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from django_tasklock.models import RateRow
from tests.support.rate_callers import callers, most_within, times
from tests.support.workers import Crew

pytestmark = [pytest.mark.database, pytest.mark.django_db(transaction=True)]

IN_THE_DATABASE = """
from django.test import override_settings
from tests.support.public import setting
override_settings(TASKLOCK=setting("database")).enable()
"""


@pytest.fixture
def crew() -> Iterator[Crew]:
    crew = Crew()
    yield crew
    crew.dismiss()


def test_four_processes(crew):
    """Many of them lose the race for the row now and then; none of their calls is one too many."""
    RateRow.objects.all().delete()
    workers = callers(crew, 4)
    for worker in workers:
        worker.do(IN_THE_DATABASE)
    calls = times(workers, "call('api', ['8/0.2s'], 6, margin=0.4)")
    assert len(calls) == 24
    assert most_within(calls, 0.2) <= 8
    assert {worker.do("RateLimiter('api', '8/0.2s').store.__class__.__name__") for worker in workers} == {
        "DatabaseRates"
    }
