"""The pages of limiters in a browser: what is read, that they keep themselves up to date, and every act by hand."""

from __future__ import annotations

import secrets

import pytest
from django.contrib.admin.utils import quote
from playwright.sync_api import expect

from django_tasklock.backends.contract.rates import Pushback, Terms
from django_tasklock.rates.notation import parse_rates
from django_tasklock.types import AcquireRequest, fingerprint
from tests.browser.chromium import Visits
from tests.browser.example import Example
from tests.browser.pages import confirm, lies, refreshed, untranslated

pytest_plugins = ["tests.browser.fixtures"]
pytestmark = pytest.mark.browser

LIST = "/admin/tasklock/ratelimit/"
LONG = "a-limiter-with-a-name-that-has-no-end:" + "and-goes-on" * 12
TAVILY = Terms("tavily", parse_rates("3/h, 100/d"))
PAUSED = Terms("openai", parse_rates("60/m"))
HOUR = 3_600_000_000


def page_of(name: str) -> str:
    """The address of a limiter's page."""
    return f"{LIST}{quote(name)}/change/"


def permit(site: Example, name: str, **holder: str) -> str:
    """Somebody far away takes one of three; the fingerprint."""
    token = secrets.token_hex(16)
    known = '{"host":"far-away","pid":4711,"task":"videos.tasks.transcode_with_a_long_name","task_id":"t-1","limit":3}'
    site.store.permits.acquire(AcquireRequest(name, token, 60_000, 600_000, known, limit=3))
    return fingerprint(token)


@pytest.fixture
def busy(site: Example) -> Example:
    """Something of everything."""
    rates = site.store.rates
    for _ in range(5):
        rates.reserve(TAVILY, 1, HOUR * 2)
    rates.penalize(PAUSED, Pushback(HOUR), HOUR)
    for tenant in ("acme", ""):
        rates.reserve(Terms(f"tavily:tenant:{tenant}", parse_rates("2/m")), 1, 0)
    rates.reserve(Terms(LONG, parse_rates("1000000/d"), "paced"), 1, 0)
    rates.adjust(Terms(LONG, parse_rates("1000000/d"), "paced"), 250_000)
    for _ in range(2):
        permit(site, "transcode")
    return site


@pytest.mark.parametrize(("dark", "width"), [(False, 1280), (True, 375)], ids=["light-wide", "dark-narrow"])
def test_every_page_can_be_read(visit: Visits, busy: Example, dark: bool, width: int) -> None:
    page = visit("operator", dark=dark, width=width)
    look = f"limits-{'dark' if dark else 'light'}-{width}"
    page.goto(LIST)
    expect(page.locator("#tasklock-table")).to_contain_text("3 of 3")
    expect(page.locator("#tasklock-table")).to_contain_text("paused")
    wide = "all => all.filter((one) => one.scrollWidth > one.parentElement.clientWidth).map((one) => one.id)"
    visit.picture(page, f"{look}-list")
    assert lies(page, "#content-main") == []
    assert page.locator("#content-main table").evaluate_all(wide) == [], "one has to scroll sideways"
    for name in ("tavily", "openai", LONG, "transcode", "nobody knows it"):
        page.goto(page_of(name))
        visit.picture(page, f"{look}-page-{name[:9]}")
        assert lies(page, "#content-main") == [], name
        assert page.locator("#content-main table").evaluate_all(wide) == [], name
    for link in ("#tasklock-reset", "#tasklock-change", "#tasklock-pause-limit"):
        page.goto(page_of("tavily"))
        page.locator(link).click()
        expect(page.locator("#tasklock-confirm")).to_be_visible()
        visit.picture(page, f"{look}-{link[10:]}")
        assert lies(page, "#content-main") == [], link


def test_acts(visit: Visits, busy: Example) -> None:
    """Change, release, reset, each with a reason that is shown in the history afterwards."""
    page = visit("operator")
    page.goto(page_of("tavily"))
    expect(page.locator("#tasklock-explanation")).to_contain_text("2 units are booked")
    page.locator("#tasklock-change").click()
    page.get_by_label("Limit in force, in per cent").fill("50")
    confirm(page, "their status page says so")
    expect(page.locator(".messagelist .success")).to_contain_text("is in force now")
    assert busy.store.rates.usage(TAVILY).share == 500_000
    page.locator("#tasklock-reset").click()
    confirm(page, "a new key")
    expect(page.locator("#tasklock-explanation")).to_contain_text("at once")
    expect(page.locator("#tasklock-history")).to_contain_text("a new key")
    expect(page.locator("#tasklock-history")).to_contain_text("their status page says so")
    assert busy.store.rates.usage(TAVILY).rates[0].used == 0
    page.goto(page_of("transcode"))
    expect(page.locator("#tasklock-members tbody tr")).to_have_count(2)
    page.locator(".tasklock-release-permit").first.click()
    confirm(page, "it hangs")
    expect(page.locator("#tasklock-members tbody tr")).to_have_count(1)
    expect(page.locator("#tasklock-history")).to_contain_text("it hangs")


def test_it_keeps_itself_up_to_date(visit: Visits, busy: Example) -> None:
    """The list and the page show again what changes; whoever may only look sees no buttons."""
    page = visit("viewer")
    page.clock.install()
    page.goto(LIST)
    row = page.locator("#tasklock-table tbody tr").filter(has=page.get_by_role("link", name="tavily", exact=True))
    expect(row).to_contain_text("full")
    busy.store.rates.reset(TAVILY)
    refreshed(page)
    expect(row).to_contain_text("open")
    row.get_by_role("link").click()
    expect(page.locator("#tasklock-facts")).to_be_visible()
    expect(page.locator("#tasklock-reset")).to_have_count(0)
    busy.store.rates.reserve(TAVILY, 1, 0)
    refreshed(page)
    expect(page.locator("#tasklock-windows")).to_contain_text("1 of 3")


def test_in_chinese(visit: Visits, busy: Example) -> None:
    page = visit("operator", language="zh-CN")
    page.goto(LIST)
    expect(page.locator("h1").last).to_contain_text("速率限制")
    expect(page.locator("#tasklock-table")).to_contain_text("已满")
    visit.picture(page, "limits-chinese-list")
    page.goto(page_of("tavily"))
    visit.picture(page, "limits-chinese-page")
    page.locator("#tasklock-reset").click()
    page.locator("textarea[name=reason]").fill("换了密钥")
    page.locator("#tasklock-confirm").click()
    expect(page.locator("#tasklock-history")).to_contain_text("换了密钥")
    page.locator("#tasklock-pause-limit").click()
    assert untranslated(page) == []
    page.go_back()
    visit.picture(page, "limits-chinese-reset")


def test_under_unfold(visit: Visits, busy: Example) -> None:
    address = busy.serve("tests.browser.unfold_settings")
    page = visit("operator", dark=True, width=375, address=address)
    for url in (LIST, page_of("tavily"), page_of("transcode")):
        page.goto(url)
        expect(page.locator("#content table").first).to_be_visible()
        visit.picture(page, f"limits-unfold-{url.split('/')[4]}")
        assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth"), url
    page.locator(".tasklock-release-permit").first.click()
    confirm(page, "themes change nothing")
    expect(page.locator("#tasklock-history")).to_contain_text("themes change nothing")
    page.goto(page_of("tavily"))
    page.locator("#tasklock-change").click()
    page.get_by_label("Limit in force, in per cent").fill("50")
    confirm(page, "themes change nothing")
    expect(page.locator("#tasklock-history")).to_contain_text("themes change nothing")
