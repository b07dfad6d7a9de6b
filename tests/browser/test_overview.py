"""The overview in a browser: what of it is seen, wide and narrow, light and dark, and under another theme."""

from __future__ import annotations

import contextlib
import random
import sqlite3
import time

import pytest
from playwright.sync_api import expect

from tests.browser.chromium import Visits
from tests.browser.example import Example
from tests.browser.pages import HAN, lies, untranslated

pytest_plugins = ["tests.browser.fixtures"]
pytestmark = pytest.mark.browser

PAGE = "/admin/tasklock/lock/overview/"


def counted(site: Example) -> None:
    """A day of a project that works, as its processes have counted it: more by day than by night."""
    luck, hour = random.Random(7), int(time.time() // 3600)
    rows = []
    for ago in range(24):
        busy = 40 + 30 * (1 - abs(((hour - ago) % 24) - 13) / 12)
        for kind, share in (("video:{id}", 1.0), ("report:{day}", 0.4)):
            number = int(busy * share * luck.uniform(0.7, 1.3))
            for event, found in (("acquired", 5 * number), ("waited", number // 2), ("conflict:skip", number // 3)):
                rows.append(((hour - ago) * 3600, event, kind, found))
    with contextlib.closing(sqlite3.connect(site.folder / "db.sqlite3", timeout=20)) as connection, connection:
        connection.executemany(
            "INSERT INTO tasklock_event_count (hour, event, kind, bucket, number, milliseconds)"
            " VALUES (?, ?, ?, 0, ?, 0) ON CONFLICT (hour, event, kind, bucket) DO UPDATE SET number = excluded.number",
            rows,
        )


@pytest.mark.parametrize(("dark", "width"), [(False, 1280), (True, 375)], ids=["light-wide", "dark-narrow"])
def test_it_can_be_read(visit: Visits, site: Example, dark: bool, width: int) -> None:
    counted(site)
    for number in range(3):
        site.lock(f"video:{number}", seconds=3600)
    site.lock("lapsed", seconds=0.05, lease=0.05)
    page = visit("operator", dark=dark, width=width)
    look = f"overview-{'dark' if dark else 'light'}-{width}"
    page.goto(PAGE)
    expect(page.locator("#tasklock-numbers")).to_contain_text("Held now")
    expect(page.locator("svg.tasklock-plot")).to_have_count(1)
    visit.picture(page, look)
    assert lies(page, "#content-main") == []
    heights = page.locator(".tasklock-drawn svg .tasklock-bar-1").evaluate_all(
        "all => all.map((one) => one.getBoundingClientRect().height)"
    )
    assert max(heights) > 60, "the bars use their room"


def test_in_chinese(visit: Visits, site: Example) -> None:
    counted(site)
    site.lock("video:1", seconds=3600)
    page = visit("operator", language="zh-CN")
    page.goto(PAGE)
    expect(page.locator("svg.tasklock-plot")).to_have_count(1)
    assert HAN.search(page.locator("#content-main").inner_text())
    assert untranslated(page) == []
    visit.picture(page, "overview-chinese")


def test_it_keeps_itself_up_to_date_and_leads_on(visit: Visits, site: Example) -> None:
    page = visit("operator")
    page.clock.install()
    page.goto("/admin/tasklock/")
    page.locator("#tasklock-to-overview a").click()
    held = page.locator("#tasklock-numbers div").filter(has_text="Held now")
    expect(held).to_contain_text("0")
    site.lock("video:1")
    page.clock.fast_forward(5100)
    expect(held).to_contain_text("1")
    held.get_by_role("link").click()
    expect(page.locator("#tasklock-table tbody tr")).to_have_count(1)
    page.locator("#tasklock-sections").get_by_role("link", name="Overview").click()
    expect(page.locator("#tasklock-sections a[aria-current]")).to_have_text("Overview")


def test_under_unfold(visit: Visits, site: Example) -> None:
    counted(site)
    address = site.serve("tests.browser.unfold_settings")
    for dark, width in ((True, 1280), (False, 375)):
        page = visit("operator", dark=dark, width=width, address=address)
        page.goto(PAGE)
        expect(page.locator("svg.tasklock-plot").first).to_be_visible()
        visit.picture(page, f"overview-unfold-{width}", full=False)
        assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
