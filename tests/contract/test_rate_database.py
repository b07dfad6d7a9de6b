"""Rate limits over processes that share a database and no Redis."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from django_tasklock.backends.contract.rates import Terms
from django_tasklock.backends.database import purging
from django_tasklock.models import RateRow
from django_tasklock.rates.notation import parse_rates
from tests.support.rate_callers import callers, most_within, times
from tests.support.stores import make
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


@pytest.mark.slow
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


def test_old_rows_go_faster_than_new_ones_come(monkeypatch):
    """However many limiters there are, one for each customer, say."""
    monkeypatch.setattr(purging, "EVERY", 8)
    for number in range(40):
        RateRow.objects.create(key=f"old:{number}", name="old", expires_at=1)
    rates = make("database").rates
    for number in range(40):
        rates.reserve(Terms(f"api:{number}", parse_rates("5/s")), 1, 1_000_000)
    assert RateRow.objects.count() == 40
