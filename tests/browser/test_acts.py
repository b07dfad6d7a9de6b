"""Limits, messages and sweeps by hand; all of it is in the audit trail, and in its file."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.browser.chromium import Visits
from tests.browser.example import Example
from tests.browser.furnished import TAVILY, furnish
from tests.browser.pages import confirm, lies

pytest_plugins = ["tests.browser.fixtures"]
pytestmark = pytest.mark.browser

ADMIN = "/admin/tasklock/"


def test_limits(visit: Visits, site: Example) -> None:
    """Change, reset, release, each with a reason that is shown in the history afterwards."""
    furnish(site)
    page = visit("operator")
    page.goto(f"{ADMIN}ratelimit/tavily/change/")
    expect(page.locator("#tasklock-explanation")).to_contain_text("2 units are booked")
    page.locator("#tasklock-change").click()
    page.get_by_label("Limit in force, in per cent").fill("50")
    confirm(page, "their status page says so")
    expect(page.locator(".messagelist .success")).to_contain_text("is in force now")
    assert site.store.rates.usage(TAVILY).share == 500_000
    page.locator("#tasklock-reset").click()
    confirm(page, "a new key")
    expect(page.locator("#tasklock-explanation")).to_contain_text("at once")
    expect(page.locator("#tasklock-history")).to_contain_text("a new key")
    expect(page.locator("#tasklock-history")).to_contain_text("their status page says so")
    page.goto(f"{ADMIN}ratelimit/transcode/change/")
    expect(page.locator("#tasklock-members tbody tr")).to_have_count(2)
    page.locator(".tasklock-release-permit").first.click()
    confirm(page, "it hangs")
    expect(page.locator("#tasklock-members tbody tr")).to_have_count(1)


GO = re.compile("Go|Run")  # until Django 5.2, from then on


def choose(page: Page, task_id: str, action: str, reason: str) -> None:
    """Tick a message, choose the action, type the reason beside it, go."""
    page.locator("#result_list tbody tr").filter(has_text=f"[{task_id}]").get_by_role("checkbox").check()
    page.get_by_label("Action:").select_option(action)
    page.get_by_label("Reason").fill(reason)
    page.get_by_role("button", name=GO).click()


def test_messages_and_sweeps(visit: Visits, site: Example) -> None:
    furnish(site)
    page = visit("operator")
    page.goto(f"{ADMIN}parkedmessage/?state=dead")
    choose(page, "t-5", "Discard", "its task is gone for good")
    expect(page.locator("#tasklock-chosen li")).to_have_text(["video:3: videos.tasks.transcode[t-5]"])
    assert lies(page) == []
    page.locator("#tasklock-confirm").click()
    expect(page.locator(".messagelist .success")).to_contain_text("1 message: done.")
    page.goto(f"{ADMIN}parkedmessage/?q=t-1")
    choose(page, "t-1", "Publish now", "now")
    expect(page.locator(".messagelist .warning")).to_contain_text("its lock is held")
    page.goto(f"{ADMIN}sweepentry/add/")
    page.locator("#tasklock-confirm").click()
    expect(page.locator("#tasklock-warning")).to_contain_text("Nothing was changed")
    expect(page.locator("#tasklock-chosen")).to_contain_text("dead")
    assert lies(page) == []
    page.goto(f"{ADMIN}auditentry/?q=operator")
    expect(page.locator("#result_list tbody tr")).to_have_count(1)
    page.locator("#result_list tbody").get_by_role("checkbox").check()
    page.get_by_label("Action:").select_option("Download the selected as CSV")
    with page.expect_download() as downloading:
        page.get_by_role("button", name=GO).click()
    text = downloading.value.path().read_text()
    assert "its task is gone for good" in text
    assert text.count("\n") == 2


def test_the_overview_leads_on(visit: Visits, site: Example) -> None:
    site.lock("video:1")
    page = visit("operator")
    page.goto(ADMIN)
    page.locator("#tasklock-to-overview a").click()
    held = page.locator("#tasklock-numbers div").filter(has_text="Held now")
    expect(held).to_contain_text("1")
    held.get_by_role("link").click()
    expect(page.locator("#tasklock-table tbody tr")).to_have_count(1)
    page.locator("#tasklock-sections").get_by_role("link", name="Overview").click()
    expect(page.locator("#tasklock-sections a[aria-current]")).to_have_text("Overview")
