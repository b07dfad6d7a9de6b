"""``to_plain``: the JSON of values; and the sentences in which results say themselves."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.utils import translation

from django_tasklock import operations
from django_tasklock.operations import Outcome, Result
from tests.support.guards import ONCE, no_guards
from tests.support.stores import clear
from tests.support.sweeping import claimed, guarded_function, hold
from tests.testapp.models import Video

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def nothing_left() -> None:
    no_guards()
    clear("redis")


def plain(value: object) -> Any:
    document = operations.to_plain(value)
    assert json.loads(json.dumps(document)) == document
    return document


def test_a_lock_is_one_object_with_its_row() -> None:
    guarded_function(guard=ONCE)
    row = claimed()
    name = f"video:{row.pk}"
    token = hold(name, row=f"testapp.video:{row.pk}", task="videos.process", task_id="t-1")
    Video.objects.filter(pk=row.pk).update(lock_token=token)
    detail = operations.get_lock(name)
    lock = plain(detail.lock)
    assert lock["name"] == name
    assert lock["holder"] == "elsewhere:1 (videos.process[t-1])"
    assert (lock["state"], lock["alive"], lock["dead"], lock["without_timeout"]) == ("live", None, False, False)
    assert lock["acquired_at"].endswith("Z")
    assert lock["row"] == {"model": "testapp.video", "pk": str(row.pk), "lookup": "pk"}
    document = plain(detail)
    assert document["lock"].keys() == lock.keys()
    assert document["row"].items() >= {"pk": str(row.pk), "agrees": True, "states": ["uploading", "failed"]}.items()
    assert document["explanation"] == detail.explanation
    assert token not in json.dumps(document)


@pytest.mark.parametrize("outcome", Outcome)
@pytest.mark.parametrize("fenced", [True, False])
def test_results_say_what_was_done(outcome: Outcome, fenced: bool) -> None:
    result = Result("a", outcome, fenced=fenced, alive=False)
    assert bool(result) is (outcome in ("released", "asked"))
    assert "“a”" in str(result)
    assert ("Its process has ended." in str(result)) is (outcome is Outcome.RELEASED)
    assert ("row" in str(result)) is fenced
    with translation.override("zh-hans"):
        assert "“a”" in str(result)
        assert "The " not in str(result)
