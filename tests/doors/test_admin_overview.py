"""The overview in the admin: what is drawn of what was counted, how things stand, and who may see it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from django_tasklock import operations
from django_tasklock.admin.locks import overview
from django_tasklock.admin.locks.overview import format_seconds, group_by_day, group_by_hour, merge
from django_tasklock.exceptions import TaskLockError
from django_tasklock.operations.metrics import Histogram, HourOfCounts, KindCounts, Totals
from tests.support.admin_pages import LIST, Reader, page_of, words
from tests.support.redis_server import free_port

pytest_plugins = ["tests.support.admin_fixtures"]
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("admin_settings", "locks")]

PAGE = f"{LIST}overview/"
MARKUP = "<script>alert('1')</script>"


def histogram(*buckets: int, seconds: float = 0.0) -> Histogram:
    """With so many in its first buckets."""
    empty = len(Histogram().buckets)
    return Histogram((*buckets, *[0] * (empty - len(buckets))), seconds)


def hour(ago: int, *kinds: KindCounts) -> HourOfCounts:
    """What was counted so many hours ago."""
    this = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    return HourOfCounts(this - timedelta(hours=ago), Totals(kinds))


VIDEOS = KindCounts(
    "video:{id}",
    wait=histogram(7, 0, 0, 2, 1, seconds=1.5),
    hold=histogram(0, 0, 0, 0, 0, 8, 2, seconds=80),
    expired=3,
    forced=1,
    conflicts={"skip": 4, "timeout": 2},
)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[HourOfCounts]:
    """What the store has counted: the test's own list."""
    hours: list[HourOfCounts] = []
    monkeypatch.setattr(overview, "read_hours", lambda number: hours)
    return hours


@pytest.mark.parametrize("kind", ["anonymous", "nobody", "staff", "viewer", "releaser", "operator", "root"])
def test_who_may_look(visitor: Any, counted: Any, kind: str) -> None:
    client = visitor(kind)
    login, may = kind in ("anonymous", "nobody"), kind in ("viewer", "operator", "root")
    for method in ("get", "post", "put", "delete"):
        refused = 405 if method != "get" else 200
        assert getattr(client, method)(PAGE).status_code == (302 if login else refused if may else 403), method
    if not login and kind != "staff":
        text = client.get("/admin/tasklock/").text if may else ""
        assert (f'href="{PAGE}"' in text) is may


def test_what_was_counted_is_drawn(operator: Client, counted: list[HourOfCounts]) -> None:
    """Hour by hour, with a table beside each plot; hours without anything are there, too."""
    counted += [hour(3, VIDEOS), hour(0, VIDEOS, KindCounts("report", wait=histogram(5), hold=histogram(5)))]
    page = operator.get(PAGE)
    granted, conflicts, ends, waits = page.context["plots"]
    assert len(granted.labels) == 24
    assert [one.values[-1] for one in granted.series] == [12, 3]
    assert [one.values[-4] for one in granted.series] == [7, 3]
    assert [one.values[-2] for one in granted.series] == [0, 0]
    assert [one.values[-1] for one in conflicts.series] == [4, 2]
    assert [one.values[-1] for one in ends.series] == [3, 1]
    assert 0.1 < waits.series[0].values[-1] <= 1
    assert page.text.count('<svg class="tasklock-plot"') == 4 + 2
    assert "at once 12, after a wait 3" in page.text
    [videos, report] = page.context["kinds"]
    assert (videos.kind, videos.count, videos.median) == ("video:{id}", "20", "3.5 s")
    assert (report.kind, report.count) == ("report", "5")
    assert Reader(page.text).refused() == []


def test_over_days(operator: Client, counted: list[HourOfCounts]) -> None:
    counted += [hour(49, VIDEOS), hour(48, VIDEOS), hour(0, VIDEOS)]
    granted = operator.get(PAGE, {"over": "days"}).context["plots"][0]
    assert len(granted.labels) == 14
    assert sum(granted.series[0].values) == 21
    assert granted.series[0].values[-1] == 7


def test_hours_and_days_are_where_the_reader_is(settings: Any) -> None:
    """At an offset of half an hour, too."""
    settings.TIME_ZONE = "Asia/Kolkata"
    with timezone.override("Asia/Kolkata"):
        hours = group_by_hour([hour(0, VIDEOS)])
        assert hours[-1].label.endswith(":30")
        assert [len(step.hours) for step in hours] == [0] * 23 + [1]
        days = group_by_day([hour(0, VIDEOS)])
        assert sum(len(step.hours) for step in days) == 1


def test_nothing_was_counted(operator: Client, counted: list[HourOfCounts]) -> None:
    text = words(operator.get(PAGE).text)
    assert text.count("None in this period.") == 5


def test_a_store_that_counts_nothing(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(number: int) -> list[HourOfCounts]:
        raise TaskLockError("it counts nothing")

    monkeypatch.setattr(overview, "read_hours", refuse)
    page = operator.get(PAGE)
    assert "This store counts nothing" in words(page.text)
    assert "Held now" in words(page.text)


def test_how_things_stand(operator: Client, take: Any, counted: list[HourOfCounts]) -> None:
    """Each number leads to the page that has more of it, for those who may see that."""
    take("a")
    take("b", ttl=1)
    operations.sweep(pause=0)
    take("c")
    text = operator.get(PAGE).text
    assert "2 Held now" in words(text).replace("Held now 2", "2 Held now")
    assert "Last sweep" in words(text)
    assert "0 s ago" in words(text)
    assert f'href="{LIST}?waiting=1"' in text
    assert "/admin/tasklock/ratelimit/" not in text


def test_the_store_is_down(operator: Client, settings: Any) -> None:
    port = free_port()
    settings.TASKLOCK = {**settings.TASKLOCK, "LOCATION": f"redis://127.0.0.1:{port}/0"}
    answer = operator.get(PAGE)
    assert answer.status_code == 503
    assert str(port) not in answer.text


def test_kinds_are_data(operator: Client, counted: list[HourOfCounts]) -> None:
    counted.append(hour(0, KindCounts(MARKUP, hold=histogram(3))))
    text = operator.get(PAGE).text
    assert MARKUP not in text
    assert Reader(text).refused() == []


def test_the_fragment_is_a_part_of_the_page(operator: Client, counted: list[HourOfCounts]) -> None:
    fragment = operator.get(PAGE, {"fragment": "1"}).text
    assert fragment.lstrip().startswith('<div id="tasklock-overview"')
    assert "<html" not in fragment


def test_histograms_are_added() -> None:
    both = merge([histogram(1, 2, seconds=3), histogram(0, 4, seconds=1)])
    assert (both.buckets[:2], both.seconds) == ((1, 6), 4)
    assert merge([]).count == 0


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0 ms"), (0.0254, "25 ms"), (1, "1.0 s"), (9.99, "10.0 s"), (90, "1 min 30 s")]
)
def test_times_are_written_as_exactly_as_they_are_known(value: float, text: str) -> None:
    assert format_seconds(value) == text


@pytest.mark.usefixtures("counted")
def test_the_page_of_a_lock_has_its_last_holds(operator: Client) -> None:
    """Who had it, when, and how it ended."""
    from django_tasklock import TaskLock

    with TaskLock("a", lease=None):
        taken_away("a")
    text = words(operator.get(page_of("a")).text)
    assert "The last holds" in text
    assert "taken away" in text


def taken_away(name: str) -> None:
    """As an operator does."""
    from django_tasklock.operations.values import Actor

    assert operations.release_lock(name, by=Actor("ann"))
