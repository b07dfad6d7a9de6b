"""The sweep in the admin: it says what it did, or would do, and keeps its last runs, also of one that broke off."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from django.db import DatabaseError
from django.test import Client

from django_tasklock import operations
from django_tasklock.backends import get_backend
from django_tasklock.exceptions import BackendUnavailable
from django_tasklock.models import AuditEntry, SweepEntry
from django_tasklock.operations.sweep import runs, stream
from django_tasklock.operations.values import Actor
from tests.support.admin_pages import Reader, table, words
from tests.support.redis_server import free_port
from tests.support.sweeping import dead_holder, hold

pytest_plugins = ["tests.support.admin_fixtures"]
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("admin_settings", "locks")]

PAGE = "/admin/tasklock/sweepentry/"
SWEEP = f"{PAGE}add/"


def page_of_run(number: int | None) -> str:
    return f"{PAGE}{number}/change/"


@pytest.fixture(autouse=True)
def _without_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody acts between the two looks here."""
    monkeypatch.setattr(stream, "sleep", lambda pause: None)


def dead(name: str) -> None:
    """Something for the sweep: a lock of a process that has ended."""
    hold(name, DEAD)


DEAD = dead_holder()


def test_it_says_what_it_did(operator: Client) -> None:
    """By class, one by one, who started it; in the audit trail, too."""
    dead("a")
    dead("b")
    answer = operator.post(SWEEP, {"begins": "a"}, follow=True)
    text = words(answer.text)
    assert "1 thing was put right." in text
    assert "locks whose holder's process is dead: 1 found, 1 put right" in text
    assert "operator" in text
    assert Reader(answer.text).refused() == []
    assert get_backend().get("b") is not None
    assert AuditEntry.objects.get().actor == "operator"
    assert operations.last_sweep_age() is None, "it was confined to some names"
    operator.post(SWEEP, {})
    assert "The last complete sweep was 0 s ago." in words(operator.get(SWEEP).text)
    assert [(line["actor"], line["right"], line["prefix"]) for line in table(operator.get(PAGE).text)] == [
        ("operator", "1", "-"),
        ("operator", "1", "prefix=a"),
    ]


def test_only_looking_changes_nothing_and_is_no_run(operator: Client) -> None:
    dead("a")
    answer = operator.post(SWEEP, {"dry_run": "on"})
    assert "Nothing was changed" in words(answer.text)
    assert "would be put right" in words(answer.text)
    assert get_backend().get("a") is not None
    assert operations.sweep_runs() == []
    assert operations.last_sweep_age() is None


def test_one_that_broke_off_is_remembered_as_that(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def down(*args: Any) -> None:
        raise BackendUnavailable("it is gone")

    monkeypatch.setattr(sys.modules["django_tasklock.operations.sweep"], "LockSweep", down)
    with pytest.raises(BackendUnavailable):
        operations.sweep(by=Actor("beat"))
    [run] = operations.sweep_runs()
    assert (run.actor, run.problem) == ("beat", "the store could not be asked: it is gone")
    assert operations.last_sweep_age() is None
    text = words(operator.get(page_of_run(run.number)).text)
    assert "the store could not be asked: it is gone" in text


@pytest.fixture
def no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """A deploy whose migrations have not run yet."""

    def missing(*args: Any, **options: Any) -> None:
        raise DatabaseError("no such table")

    monkeypatch.setattr("django.db.models.query.QuerySet.create", missing)


@pytest.mark.usefixtures("no_table")
def test_a_sweep_does_without_its_table(caplog: Any) -> None:
    dead("a")
    assert operations.sweep().swept == 1
    assert "could not be recorded" in caplog.text


def test_no_more_than_the_last_runs_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "MAX_RUNS", 3)
    for number in range(5):
        operations.sweep(by=Actor(f"beat {number}"))
    assert SweepEntry.objects.count() == 3
    assert [run.actor for run in operations.sweep_runs()] == ["beat 4", "beat 3", "beat 2"]


def test_the_store_is_down(operator: Client, settings: Any) -> None:
    """The runs are in the database, and shown; a sweep says that it broke off."""
    port = free_port()
    settings.TASKLOCK = {**settings.TASKLOCK, "LOCATION": f"redis://127.0.0.1:{port}/0"}
    assert operator.get(PAGE).status_code == 200
    text = words(operator.post(SWEEP, {}, follow=True).text)
    assert "The lock store cannot be reached: the sweep broke off." in text
    assert [bool(line["problem"]) for line in table(operator.get(PAGE).text)] == [True]
