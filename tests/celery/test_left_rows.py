"""Rows that a message has left when it ended: which are closed, and which are left to others."""

from __future__ import annotations

from typing import Any

import pytest

from django_tasklock import StateGuard
from django_tasklock.celery.delivery.left import close_rows
from django_tasklock.decorators.rows import GuardedRow
from tests.support.guards import ONCE, new_token
from tests.testapp.models import PlainVideo, Video

pytestmark = [pytest.mark.database, pytest.mark.django_db]

TOKEN = new_token()


def closed(
    model: Any = Video, guard: StateGuard = ONCE, *, token: str = TOKEN, state: str = "processing", **how: Any
) -> str:
    """The state of a row in this one, with this token, when a message with ``TOKEN`` has ended."""
    row = model.objects.create(status=state, **({"lock_token": token} if model is Video else {}))
    how = {"had_lock": True, "given_back": False, "helpers": False, **how}
    close_rows("a.task[1]", GuardedRow(model, row.pk, guard), {TOKEN}, **how)
    row.refresh_from_db()
    assert model is PlainVideo or (row.lock_token == "") is (row.status == "failed" or not token)
    return str(row.status)


def test_its_own_is_failed_whatever_state_its_body_has_moved_it_to():
    assert closed() == "failed"
    assert closed(state="transcoding") == "failed"


def test_one_that_another_claim_has_is_not_touched():
    assert closed(token=new_token()) == "processing"
    assert closed(token=new_token(), given_back=True) == "processing"


def test_one_without_a_token_is_failed_only_if_an_earlier_try_has_given_it_back():
    assert closed(token="", state="uploading") == "uploading"
    assert closed(token="", state="uploading", given_back=True) == "failed"
    assert closed(token="", state="ready", given_back=True) == "ready"


def test_one_that_cannot_be_told_from_others_work_needs_the_lock():
    assert closed(PlainVideo, had_lock=False) == "processing"
    assert closed(PlainVideo) == "failed"


def test_a_guard_without_a_state_for_failures_leaves_it_to_the_sweep():
    assert closed(guard=StateGuard(claim_from=["uploading"], claim_as="processing", done="ready")) == "processing"
