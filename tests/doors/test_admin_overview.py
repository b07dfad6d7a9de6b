"""The overview in the admin: how things stand, and what is drawn of the last day, in a plot that can be read, too."""

from __future__ import annotations

import time
import xml.etree.ElementTree as ET
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from django_tasklock import operations
from django_tasklock.admin.locks.overview import make_chart
from django_tasklock.admin.plots import BarChart, Series, round_up
from django_tasklock.counts import Count
from django_tasklock.models import EventCount
from tests.support.admin_pages import LIST, Reader, words

pytest_plugins = ["tests.support.admin_fixtures"]
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("admin_settings", "locks")]

PAGE = f"{LIST}overview/"


def count(ago: int, **events: int) -> None:
    """Events of so many hours ago."""
    for event, number in events.items():
        EventCount.objects.create(
            hour=int(time.time()) // 3600 * 3600 - ago * 3600,
            event=event.replace("__", ":"),
            kind="video:{id}",
            bucket=0,
            number=number,
            milliseconds=0,
        )


def test_what_was_counted_is_drawn(operator: Client) -> None:
    """Hour by hour, with a table beside the plot; hours without anything are there, too."""
    count(0, acquired=12, waited=3, conflict__skip=4, conflict__timeout=2, lost=1, forced=5, released=10)
    count(3, acquired=7)
    count(30, acquired=1000)
    page = operator.get(PAGE)
    at_once, waited, busy = page.context["plot"].series
    assert len(at_once.values) == 24
    assert "None in this period." not in words(page.text)
    assert (at_once.values[-1], waited.values[-1], busy.values[-1]) == (12, 3, 6)
    assert (at_once.values[-4], waited.values[-4], busy.values[-4]) == (7, 0, 0)
    assert sum(at_once.values) == 19
    assert page.text.count('<svg class="tasklock-plot"') == 1
    assert "granted at once 12, granted after a wait 3, busy 6" in page.text
    figures = {one.label: one for one in page.context["figures"]}
    assert (figures["Lost in a day"].value, figures["Lost in a day"].alarming) == ("1", True)
    assert figures["Released by force in a day"].value == "5"
    assert Reader(page.text).refused() == []


def test_hours_are_where_the_reader_is(settings: Any) -> None:
    """At an offset of half an hour, too."""
    settings.TIME_ZONE = "Asia/Kolkata"
    hour = int(time.time()) // 3600 * 3600
    with timezone.override("Asia/Kolkata"):
        chart = make_chart({hour: [Count("acquired", "", 0, 5, 0)]})
    assert chart.labels[-1].endswith(":30")
    assert list(chart.series[0].values) == [0] * 23 + [5]


def test_without_the_table_of_counts(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EventCount._meta, "db_table", "there_is_none")
    text = words(operator.get(PAGE).text)
    assert "The counts could not be read" in text
    assert "Held now" in text


def test_how_things_stand(operator: Client, take: Any) -> None:
    """Each number leads to the page that has more of it, for those who may see that."""
    take("a")
    take("b", ttl=1)
    assert "Last sweep never" in words(operator.get(PAGE).text).replace("never Last sweep", "Last sweep never")
    operations.sweep(pause=0)
    take("c")
    text = operator.get(PAGE).text
    assert "2 Held now" in words(text).replace("Held now 2", "2 Held now")
    assert "Last sweep" in words(text)
    assert "0 s ago" in words(text)
    assert f'href="{LIST}?waiting=1"' in text
    assert "/admin/tasklock/ratelimit/" not in text


# The plot


def test_everything_that_is_drawn_is_said_and_what_others_wrote_is_data() -> None:
    """To those who point at it, to those who hear it, and as a table. Kinds of locks come from elsewhere."""
    title = "<script>'\"&"
    series = [Series("at once", [3, 0]), Series("]]></svg><script>", [1, 2])]
    bars = BarChart(title, ["09:00", "<b>"], series, "{:.0f}".format)
    root = ET.fromstring(bars.svg)
    assert "<script>" not in bars.svg
    assert Reader(bars.svg).refused() == []
    assert (root.get("role"), root.get("aria-label")) == ("img", title)
    assert [one.text for one in root.iter("title")] == [
        "09:00: at once 3, ]]></svg><script> 1",
        "<b>: at once 0, ]]></svg><script> 2",
    ]
    assert bars.rows == [("09:00", ["3", "1"]), ("<b>", ["0", "2"])]
    for value in (0.37, 1, 7, 4999):
        assert value <= round_up(value) <= value * 1.51
    assert round_up(float("inf")) == round_up(float("nan")) == 1
