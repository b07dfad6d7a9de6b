"""The overview in a browser: what of it is seen, wide and narrow, light and dark, and under another theme."""

from __future__ import annotations

import random
import time

import pytest
from playwright.sync_api import expect

from django_tasklock.types import AcquireRequest
from tests.browser.chromium import Visits
from tests.browser.example import Example
from tests.browser.pages import HAN, detail, lies, untranslated

pytest_plugins = ["tests.browser.fixtures"]
pytestmark = pytest.mark.browser

PAGE = "/admin/tasklock/lock/overview/"
WIDE = "all => all.filter((one) => one.scrollWidth > one.parentElement.clientWidth).map((one) => one.id)"


def counted(site: Example) -> None:
    """Two weeks of a project that works, as the store keeps them: more by day than by night."""
    luck, hour = random.Random(7), int(time.time() // 3600)
    for ago in range(1, 14 * 24):
        busy = 40 + 30 * (1 - abs(((hour - ago) % 24) - 13) / 12)
        fields: dict[str, int] = {}
        for kind, share in (
            ("video:{id}", 1.0),
            ("report:{day}", 0.4),
            ("a.module.with_a_long_name.tasks.of_a_task", 0.1),
        ):
            number = int(busy * share * luck.uniform(0.7, 1.3))
            fields |= {f"acquired|{kind}": number * 5, f"n|waited:{luck.randint(2, 6)}|{kind}": number // 3}
            fields |= {f"n|released:{bucket}|{kind}": number * (6 - abs(bucket - 5)) // 4 for bucket in range(2, 9)}
            fields |= {f"ms|released:5|{kind}": number * 4000, f"conflict:skip|{kind}": number // 2}
            fields |= {f"conflict:timeout|{kind}": number // 9, f"expired|{kind}": luck.choice((0, 0, 0, 2))}
            fields |= {f"forced|{kind}": luck.choice((0, 0, 0, 0, 1))}
        site.client.hset(f"task_lock#hour:{hour - ago}", mapping={key: value for key, value in fields.items() if value})


@pytest.mark.parametrize(("dark", "width"), [(False, 1280), (True, 375)], ids=["light-wide", "dark-narrow"])
def test_it_can_be_read(visit: Visits, site: Example, dark: bool, width: int) -> None:
    counted(site)
    for number in range(3):
        site.lock(f"video:{number}", seconds=3600)
    site.lock("lapsed", seconds=0.05, lease=0.05)
    page = visit("operator", dark=dark, width=width)
    look = f"overview-{'dark' if dark else 'light'}-{width}"
    for over in ("hours", "days"):
        page.goto(f"{PAGE}?over={over}")
        expect(page.locator("#tasklock-numbers")).to_contain_text("Held now")
        expect(page.locator("svg.tasklock-plot")).to_have_count(4 + 3)
        expect(page.locator("#tasklock-kinds")).to_contain_text("video:{id}")
        visit.picture(page, f"{look}-{over}")
        assert lies(page, "#content-main") == []
        assert page.locator("#content-main .tasklock-table").evaluate_all(WIDE) == []
        heights = page.locator(".tasklock-drawn svg .tasklock-bar-1").evaluate_all(
            "all => all.map((one) => one.getBoundingClientRect().height)"
        )
        assert max(heights) > 60, "the bars use their room"


def test_in_chinese(visit: Visits, site: Example) -> None:
    counted(site)
    site.lock("video:1", seconds=3600)
    page = visit("operator", language="zh-CN")
    page.goto(PAGE)
    expect(page.locator("svg.tasklock-plot")).to_have_count(4 + 3)
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


def test_the_last_holds_of_a_lock(visit: Visits, site: Example) -> None:
    holder = '{"kind":"video:{id}","host":"far-away","pid":4711,"task":"videos.tasks.report","task_id":"t-1"}'
    site.store.acquire(AcquireRequest("video:1", "1" * 32, 60_000, 60_000, holder))
    site.store.remove("video:1")
    page = visit("viewer")
    page.goto(detail("video:1"))
    expect(page.locator("#tasklock-holds tbody tr")).to_have_count(1)
    expect(page.locator("#tasklock-holds")).to_contain_text("taken away")
    visit.picture(page, "lock-holds")


def test_under_unfold(visit: Visits, site: Example) -> None:
    counted(site)
    address = site.serve("tests.browser.unfold_settings")
    for dark, width in ((True, 1280), (False, 375)):
        page = visit("operator", dark=dark, width=width, address=address)
        page.goto(PAGE)
        expect(page.locator("svg.tasklock-plot").first).to_be_visible()
        visit.picture(page, f"overview-unfold-{width}", full=False)
        assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
