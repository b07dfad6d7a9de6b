"""How the operators' pages look: light, dark, narrow, in Chinese, on another admin site, under django-unfold."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.browser.chromium import Visits
from tests.browser.example import Example
from tests.browser.pages import HAN, LIST, begin, confirm, detail, lies, row, untranslated

pytest_plugins = ["tests.browser.fixtures"]
pytestmark = pytest.mark.browser

VIDEO = "video_processing_lock:1"
LONG = "a-lock-with-a-name-that-has-no-end:" + "andgoeson" * 18


@pytest.fixture
def busy(site: Example) -> Example:
    """Something of everything."""
    assert site.worker("claim", 1) == "holds"
    site.lock(LONG, seconds=100_000, lease=60, task="a.module.with.a.long.path.tasks.a_task_with_a_long_name" * 2)
    site.lock("unending", task="")
    site.client.persist(site.key("unending"))
    site.lock("ends-soon", lease=5)
    site.lock("lapsed", seconds=0.05, lease=0.05)
    return site


def walk(page: Page, visit: Visits, name: str, site: str = LIST, *, colours: bool = True) -> None:
    """Through every kind of page, looking at each."""

    def look(what: str) -> None:
        visit.picture(page, f"{what}-{name}")
        assert lies(page, "#content-main", colours=colours) == [], what

    page.goto(site)
    expect(row(page, VIDEO)).to_be_visible()
    look("list")
    page.locator("#tasklock-states a").last.click()
    expect(row(page, "lapsed")).to_be_visible()
    look("orphaned")
    page.goto(detail(VIDEO, site=site))
    expect(page.locator("#tasklock-facts")).to_be_visible()
    look("lock")
    page.goto(detail(LONG, site=site))
    look("lock-long-name")
    page.locator("#tasklock-ask").click()
    look("ask")
    page.goto(detail(VIDEO, site=site))
    page.locator("#tasklock-release").click()
    expect(page.locator("#tasklock-release-form")).to_be_visible()
    look("release")
    page.locator("textarea[name=reason]").fill("nobody is there any more")
    page.locator("#tasklock-confirm").click()
    expect(page.locator("#tasklock-history")).to_contain_text("nobody is there any more")
    look("released")
    page.goto(site)
    row(page, LONG).get_by_role("checkbox").check()
    page.locator("#tasklock-release-selected").click()
    expect(page.locator("#tasklock-chosen")).to_be_visible()
    look("release-selected")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 375], ids=["wide", "narrow"])
def test_every_page_can_be_read(visit: Visits, busy: Example, dark: bool, width: int) -> None:
    name = f"{'dark' if dark else 'light'}-{width}"
    page = visit("operator", dark=dark, width=width)
    page.goto(LIST)
    fits = "table => table.scrollWidth <= table.parentElement.clientWidth"
    assert page.locator("#tasklock-table").evaluate(fits), "one has to scroll sideways to see who holds it"
    walk(page, visit, name)


def test_in_chinese(visit: Visits, busy: Example) -> None:
    page = visit("operator", language="zh-CN")
    page.goto(LIST)
    assert page.locator("html").get_attribute("lang") == "zh-hans"
    assert untranslated(page) == []
    visit.picture(page, "list-chinese")
    page.goto(detail(VIDEO))
    assert untranslated(page) == []
    visit.picture(page, "lock-chinese")
    begin(page, VIDEO)
    assert untranslated(page) == []
    visit.picture(page, "release-chinese")
    page.locator("textarea[name=reason]").fill("机器坏了")
    page.locator("#tasklock-confirm").click()
    expect(page.locator("#tasklock-history")).to_contain_text("机器坏了")
    assert HAN.search(page.locator(".messagelist").inner_text())
    visit.picture(page, "released-chinese")
    page.goto("/admin/videos/video/2/change/")
    assert untranslated(page, "#tasklock-panel") == []
    busy.redis.kill()
    visit.expect_status(503)
    page.goto(LIST)
    assert untranslated(page) == []
    visit.picture(page, "store-down-chinese", full=False)


def test_on_an_admin_site_of_ones_own(visit: Visits, busy: Example) -> None:
    page = visit("operator")
    walk(page, visit, "ops", "/ops/tasklock/lock/")
    for address in page.locator("#content a, .breadcrumbs a").evaluate_all("all => all.map((one) => one.pathname)"):
        assert address.startswith("/ops/"), address


def test_under_unfold(visit: Visits, busy: Example) -> None:
    address = busy.serve("tests.browser.unfold_settings")
    for dark, width in ((False, 1280), (True, 375)):
        page = visit("operator", dark=dark, width=width, address=address)
        page.goto(LIST)
        expect(row(page, VIDEO)).to_be_visible()
        visit.picture(page, f"unfold-list-{'dark' if dark else 'light'}")
        page.goto(detail(VIDEO))
        visit.picture(page, f"unfold-lock-{'dark' if dark else 'light'}")
        assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
    begin(page, VIDEO)
    visit.picture(page, "unfold-release")
    confirm(page, "themes change nothing")
    expect(page.locator("#tasklock-history")).to_contain_text("themes change nothing")
    assert busy.store.get(VIDEO) is None
    page.goto("/admin/videos/video/1/change/")
    expect(page.locator("#tasklock-panel")).to_contain_text("free")
    visit.picture(page, "unfold-panel")
