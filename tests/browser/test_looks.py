"""Every page can be read: at a desk, on a phone at night, in Chinese, under django-unfold."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.browser.chromium import Visits
from tests.browser.example import Example
from tests.browser.furnished import LONG, VIDEO, furnish, queue
from tests.browser.pages import LIST, detail, lies, row, untranslated

pytest_plugins = ["tests.browser.fixtures"]
pytestmark = pytest.mark.browser

ADMIN = "/admin/tasklock/"
LIMITS, PARKED, AUDIT, SWEEPS = (
    f"{ADMIN}{name}/" for name in ("ratelimit", "parkedmessage", "auditentry", "sweepentry")
)
OURS = {
    "list": LIST,
    "orphaned": f"{LIST}?state=orphaned",
    "lock": detail(VIDEO),
    "lock-long": detail(LONG),
    "lock-dead": detail("dead"),
    "lock-waiters": detail("video:1"),
    "lock-free": detail("nobody has it"),
    "release": detail(VIDEO, "release"),
    "ask": detail(LONG, "ask"),
    "overview": f"{LIST}overview/",
    "limits": LIMITS,
    "limit": f"{LIMITS}tavily/change/",
    "limit-paused": f"{LIMITS}openai/change/",
    "permits": f"{LIMITS}transcode/change/",
    "limit-reset": f"{LIMITS}tavily/reset/",
    "limit-pause": f"{LIMITS}tavily/pause/",
    "sweep": f"{SWEEPS}add/",
}
"""Pages with templates of ours."""
STOCK = {"parked": PARKED, "audit": AUDIT, "sweeps": SWEEPS}
"""Lists of Django's own."""
CUT_OFF = """() => [...document.querySelectorAll("#content-main table")].filter(
    (one) => one.scrollWidth > one.parentElement.clientWidth).map((one) => one.id || one.className)"""
FITS = "document.scrollingElement.scrollWidth <= innerWidth"


@pytest.fixture
def busy(site: Example) -> Example:
    furnish(site)
    queue(site)
    return site


def walk(page: Page, visit: Visits, look: str) -> None:
    """Through every page, looking at each."""
    for what, url in {**OURS, **STOCK}.items():
        page.goto(url)
        visit.picture(page, f"{look}-{what}", full=what not in STOCK)
        assert page.evaluate(FITS), f"{what}: the page scrolls sideways"
        assert page.evaluate(CUT_OFF) == [], f"{what}: one has to scroll sideways to read it"
        if what in OURS:
            assert lies(page, "#content-main") == [], what
    for what, url in STOCK.items():
        page.goto(url)
        page.locator("#result_list tbody th a").first.click()
        visit.picture(page, f"{look}-{what}-one")
        assert page.evaluate(FITS), what
    page.goto(OURS["overview"])
    bars = page.locator("svg.tasklock-plot .tasklock-bar-1")
    assert max(bars.evaluate_all("all => all.map((one) => one.getBoundingClientRect().height)")) > 60
    page.goto(LIST)
    for name in (VIDEO, LONG):
        row(page, name).get_by_role("checkbox").check()
    page.locator("#tasklock-release-selected").click()
    expect(page.locator("#tasklock-chosen li")).to_have_count(2)
    visit.picture(page, f"{look}-release-selected")
    assert lies(page, "#content-main") == []


@pytest.mark.parametrize(("dark", "width"), [(False, 1280), (True, 375)], ids=["desk", "phone-at-night"])
def test_every_page_can_be_read(visit: Visits, busy: Example, dark: bool, width: int) -> None:
    walk(visit(dark=dark, width=width), visit, f"{'dark' if dark else 'light'}-{width}")


def test_in_chinese(visit: Visits, busy: Example) -> None:
    """What people did, and why, is shown as it was written; all else is translated."""
    page = visit(language="zh-CN")
    for what, url in {**OURS, **STOCK}.items():
        page.goto(url)
        visit.picture(page, f"chinese-{what}", full=what not in STOCK)
        assert page.locator("html").get_attribute("lang") == "zh-hans"
        for part in ["#content-main"] if what in OURS else ["#result_list thead"]:
            assert untranslated(page, part) == [], what
    queue(busy)  # a look at so many pages may take longer than the queue remembers who does not ask
    page.goto(LIST)
    behind = row(page, "video:1").locator("td").last
    expect(behind).to_contain_text("2 个等待")
    assert behind.evaluate("one => one.clientWidth") >= 60, "each character is in a line of its own"
    page.goto("/admin/videos/video/1/change/")
    assert untranslated(page, "#tasklock-panel") == []
    visit.picture(page, "chinese-panel")


def test_under_unfold(visit: Visits, busy: Example) -> None:
    address = busy.serve("tests.browser.unfold_settings")
    for dark, width in ((False, 1280), (True, 375)):
        page = visit(dark=dark, width=width, address=address)
        for what, url in {**OURS, **STOCK}.items():
            page.goto(url)
            visit.picture(page, f"unfold-{width}-{what}", full=False)
            assert page.evaluate(FITS), what
    page.goto(detail(VIDEO, "release"))
    page.get_by_label("Reason").fill("themes change nothing")
    page.locator("#tasklock-confirm").click()
    expect(page.locator("#tasklock-history")).to_contain_text("themes change nothing")
    assert busy.store.get(VIDEO) is None
    page.goto("/admin/videos/video/1/change/")
    expect(page.locator("#tasklock-panel")).to_contain_text("free")
