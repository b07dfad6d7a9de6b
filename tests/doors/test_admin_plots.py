"""The plots of the overview: what is drawn, what is said of it, and that nothing in it needs a script or a style."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from django_tasklock.admin.plots import HEIGHT, WIDTH, BarChart, Series, round_up
from tests.support.admin_pages import Reader

SVG = "{http://www.w3.org/2000/svg}"


def drawn(bars: BarChart) -> ET.Element:
    """The drawing, which must be XML."""
    return ET.fromstring(bars.svg)


def boxes(bars: BarChart, number: int) -> list[tuple[float, float, float]]:
    """Left edge, upper edge and height of the parts of one series."""
    found = drawn(bars).iter("rect")
    return [
        (float(one.get("x", 0)), float(one.get("y", 0)), float(one.get("height", 0)))
        for one in found
        if one.get("class") == f"tasklock-bar-{number}"
    ]


def test_bars_stand_on_each_other() -> None:
    """In their room, from the bottom up, in proportion; nothing where there is nothing."""
    bars = BarChart("Locks", ["a", "b", "c", "d"], [Series("one", [1, 0, 4, 10]), Series("two", [1, 0, 4, 0])])
    assert (bars.top, bars.top_label, bars.middle_label) == (10, "10", "5")
    room = WIDTH / 4
    first, second = boxes(bars, 1), boxes(bars, 2)
    assert first == [
        (room * 0 + room * 0.075, 90, 10),
        (room * 2 + room * 0.075, 60, 40),
        (room * 3 + room * 0.075, 0, HEIGHT),
    ]
    assert second == [(room * 0.075, 80, 10), (room * 2 + room * 0.075, 20, 40)]


def test_everything_that_is_drawn_is_said() -> None:
    """To those who point at it, to those who hear it, and as a table."""
    bars = BarChart(
        "Locks", ["09:00", "10:00"], [Series("at once", [3, 0]), Series("after a wait", [1, 2])], "{:.0f}".format
    )
    root = drawn(bars)
    assert (root.get("role"), root.get("aria-label")) == ("img", "Locks")
    assert [one.text for one in root.iter("title")] == [
        "09:00: at once 3, after a wait 1",
        "10:00: at once 0, after a wait 2",
    ]
    assert bars.rows == [("09:00", ["3", "1"]), ("10:00", ["0", "2"])]


def test_nothing_is_empty_and_no_error() -> None:
    bars = BarChart("Locks", ["a", "b"], [Series("one", [0, 0])])
    assert bars.empty
    assert boxes(bars, 1) == []
    assert bars.top == 1
    assert BarChart("Locks", [], [Series("one", [])]).empty
    assert drawn(BarChart("Locks", [], [Series("one", [])])) is not None
    assert not BarChart("Locks", ["a"], [Series("one", [0.001])]).empty


def test_what_others_wrote_is_data() -> None:
    """Kinds of locks come from elsewhere."""
    bars = BarChart("<script>'\"&", ["<b>"], [Series("]]></svg><script>", [1])])
    assert "<script>" not in bars.svg
    assert drawn(bars).get("aria-label") == "<script>'\"&"
    assert Reader(bars.svg).refused() == []


@pytest.mark.parametrize(
    ("value", "top"),
    [
        (0, 1),
        (1, 1),
        (1.01, 1.5),
        (3, 3),
        (2.4, 3),
        (9, 10),
        (10, 10),
        (11, 15),
        (99_999, 100_000),
        (0.03, 0.03),
        (7e8, 8e8),
    ],
)
def test_the_upper_edge_is_a_round_number(value: float, top: float) -> None:
    assert round_up(value) == pytest.approx(top)


def test_whatever_it_is_no_bar_is_higher_than_the_room() -> None:
    for number in range(1, 5000):
        value = number * 0.37
        assert value <= round_up(value) <= value * 1.51
    assert round_up(float("inf")) == round_up(float("nan")) == 1
