"""Permits as rows: who is granted one between another's look and its grant, and what is tidied up."""

from __future__ import annotations

import pytest

from django_tasklock.backends.database import permits as rows, purging
from django_tasklock.exceptions import TransactionOpen
from django_tasklock.models import LimiterRow, PermitRow
from django_tasklock.types import Busy, Grant
from tests.support.permits import a_request
from tests.support.stores import granted, make

pytestmark = [pytest.mark.database, pytest.mark.django_db(transaction=True)]
NAME = "transcode"


@pytest.fixture
def permits():
    return make("database").permits


@pytest.mark.parametrize("known", [True, False], ids=["a limiter that was used", "one that was not"])
@pytest.mark.parametrize("limit", [1, 3])
def test_who_counts_what_another_counts_at_the_same_time_counts_again(permits, monkeypatch, known, limit):
    """Forced: the other is granted the last permit after this one has counted and before it is granted one."""
    taken = [a_request(NAME, limit) for _ in range(limit)]
    for ask in taken if known else ():
        granted(permits.acquire(ask))
        permits.release(NAME, ask.token)
    for ask in taken[1:]:
        granted(permits.acquire(ask))
    admit, other = rows.admit, make("database").permits

    def late(*arguments):
        monkeypatch.setattr(rows, "admit", admit)
        granted(other.acquire(taken[0]))
        return admit(*arguments)

    monkeypatch.setattr(rows, "admit", late)
    assert isinstance(permits.acquire(a_request(NAME, limit)), Busy)
    assert {record.token for record in permits.members(NAME)} == {ask.token for ask in taken}


def test_who_loses_the_race_for_one_of_several_has_the_next(permits, monkeypatch):
    admit, other = rows.admit, make("database").permits

    def late(*arguments):
        monkeypatch.setattr(rows, "admit", admit)
        granted(other.acquire(a_request(NAME, 2)))
        return admit(*arguments)

    monkeypatch.setattr(rows, "admit", late)
    assert isinstance(permits.acquire(a_request(NAME, 2)), Grant)
    assert len(permits.members(NAME)) == 2


def test_inside_of_a_transaction_it_is_refused(permits):
    from django.db import transaction

    with transaction.atomic(), pytest.raises(TransactionOpen):
        permits.acquire(a_request(NAME, 2))


def test_what_lapsed_goes_with_the_next_grant_and_the_rest_after_an_hour(permits):
    granted(permits.acquire(a_request(NAME, 2)))
    PermitRow.objects.update(expires_at=1)
    granted(permits.acquire(a_request(NAME, 2)))
    assert PermitRow.objects.count() == 1
    live = a_request("other", 2)
    granted(permits.acquire(live))
    assert permits.purge() == 0
    PermitRow.objects.exclude(token=live.token).update(expires_at=5)
    LimiterRow.objects.update(fence=7)
    assert permits.purge() == 3
    assert list(PermitRow.objects.values_list("token", flat=True)) == [live.token]
    assert isinstance(permits.acquire(a_request("other", 1)), Busy)  # counted without its limiter's row
    assert granted(permits.acquire(a_request("other", 2)))


def test_old_rows_go_faster_than_new_ones_come(permits, monkeypatch):
    """However many limiters there are, one for each customer, say."""
    monkeypatch.setattr(purging, "EVERY", 8)
    for number in range(40):
        LimiterRow.objects.create(key=f"old:{number}", fence=number)
    for number in range(40):
        request = a_request(f"{NAME}:{number}", 2)
        permits.acquire(request)
        permits.release(request.name, request.token)
    assert LimiterRow.objects.count() == 40
