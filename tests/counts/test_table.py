"""The table of counts: added to by every process, in the way of none, and never less than before."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from typing import Any

import pytest
from django.db import connection, transaction

from django_tasklock import counts
from django_tasklock.models import EventCount
from tests.support.counted import counted, written
from tests.support.public import PROJECT, forked, in_store

KIND = "video:{id}"
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]


@pytest.fixture(autouse=True)
def _memory(settings: Any) -> Any:
    yield from in_store("memory", settings)


def test_what_is_flushed_is_there_once() -> None:
    for milliseconds in (3, 4, 700):
        counts.count(counts.WAITED, KIND, milliseconds)
    counts.count(counts.ACQUIRED, "报告:{day}")
    assert counts.flush()
    assert counts.flush()
    assert counts.pending() == []
    assert sorted(counts.read_totals()) == [
        counts.Count("acquired", "报告:{day}", 0, 1, 0),
        counts.Count("waited", KIND, 0, 2, 7),
        counts.Count("waited", KIND, 4, 1, 700),
    ]
    [found] = counts.read_hours().values()
    assert sorted(found) == sorted(counts.read_totals())
    assert all(kind.isascii() for kind in EventCount.objects.values_list("kind", flat=True))


def test_many_at_once() -> None:
    for number in range(150):
        counts.count(counts.ACQUIRED, f"kind-{number}")
    for _ in range(2):
        counts.count(counts.RELEASED, KIND, 3)
        assert counts.flush()
    assert EventCount.objects.count() == 151
    assert written(KIND) == {"released": 2}


def test_processes_add_to_each_other() -> None:
    code = f"""
import os
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
import django; django.setup()
from django_tasklock import counts
for number in range(500):
    for kind in ("a", "b", {KIND!r}):
        counts.count(counts.RELEASED, kind, number % 40)
    if not number % 50:
        assert counts.flush()
"""  # what is left is written as the process ends
    children = [subprocess.Popen([sys.executable, "-c", code], cwd=PROJECT) for _ in range(2)]
    assert [child.wait(120) for child in children] == [0] * 2
    assert written(KIND) == written("a") == {"released": 1000}


def test_a_forked_child_writes_its_own() -> None:
    counts.count(counts.ACQUIRED, KIND)
    assert counts.flush()
    counts.count(counts.ACQUIRED, KIND)

    def child() -> bool:
        connection.close()
        counts.count(counts.FORCED, KIND)
        return counts.flush()

    assert forked(child) is True
    assert written(KIND) == {"acquired": 1, "forced": 1}
    assert counted(KIND) == {"acquired": 1}


def test_it_is_no_part_of_the_callers_transaction() -> None:
    class Undone(Exception):
        pass

    counts.count(counts.ACQUIRED, KIND)
    if connection.vendor == "sqlite":  # which locks the whole file
        with transaction.atomic():
            assert counts.pending()
        assert counts.flush()
    else:
        with pytest.raises(Undone), transaction.atomic():
            assert counts.flush()
            raise Undone
    assert written(KIND) == {"acquired": 1}


def test_a_table_that_cannot_be_written_costs_a_warning(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    """And the counts wait for it."""
    whole = EventCount._meta.db_table
    monkeypatch.setattr(EventCount._meta, "db_table", "there_is_none")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            counts.count(counts.ACQUIRED, KIND)
            assert not counts.flush()
    assert [record.levelname for record in caplog.records if "counts:" in record.message] == ["WARNING"]
    assert counted(KIND) == {"acquired": 3}
    monkeypatch.setattr(EventCount._meta, "db_table", whole)
    assert counts.flush()
    assert written(KIND) == {"acquired": 3}


def test_nothing_is_written_that_no_test_has_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counts, "INTERVAL", 0.01)
    counts.after_fork()
    counts.count(counts.ACQUIRED, KIND)
    assert not [thread for thread in threading.enumerate() if thread is counts._process._thread]
    assert not EventCount.objects.exists()


def test_old_hours_are_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the first flush of an hour; the sums stay."""
    this = counts._this_hour()
    for ago in (0, 1, 47, 48, 49, 500):
        EventCount.objects.create(
            hour=this - ago * 3600, event="released", kind=KIND, bucket=3, number=1 + ago, milliseconds=10
        )
    EventCount.objects.create(hour=0, event="released", kind=KIND, bucket=3, number=1000, milliseconds=10)
    before = counts.read_totals()
    monkeypatch.setattr(counts._process, "_folded", 0)
    counts.count(counts.ACQUIRED, KIND)
    assert counts.flush()
    assert [one for one in counts.read_totals() if one.event == "released"] == before
    hours = EventCount.objects.filter(event="released").order_by("hour").values_list("hour", "number")
    assert [((this - hour) // 3600 if hour else None, number) for hour, number in hours] == [
        (None, 1000 + 50 + 501),
        (48, 49),
        (47, 48),
        (1, 2),
        (0, 1),
    ]


def test_two_that_add_up_old_hours_at_once_do_so_once() -> None:
    """The second one between the first one's look and its write."""
    this = counts._this_hour()
    for bucket in range(10):
        EventCount.objects.create(
            hour=this - 100 * 3600, event="waited", kind=KIND, bucket=bucket, number=1, milliseconds=1
        )
    others: list[threading.Thread] = []

    def fold() -> None:
        with counts._connection() as mine, mine.execute_wrapper(then_another):
            counts._fold(mine, this - 48 * 3600)

    def then_another(execute: Any, sql: str, *rest: Any) -> Any:
        found = execute(sql, *rest)
        if sql.startswith("SELECT") and not others:
            others.append(threading.Thread(target=fold))
            others[0].start()
            others[0].join()
        return found

    first = threading.Thread(target=fold)
    first.start()
    first.join()
    assert len(others) == 1
    assert written(KIND)["waited"] == 10
    assert set(EventCount.objects.values_list("hour", flat=True)) == {0}


def test_the_connection_is_closed() -> None:
    opened = []
    original = counts._add

    def note(connection: Any, rows: Any) -> None:
        opened.append(connection)
        original(connection, rows)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counts, "_add", note)
        counts.count(counts.ACQUIRED, KIND)
        assert counts.flush()
    [used] = opened
    assert used is not connection
    assert used.connection is None
