"""Limits, messages and sweeps by hand; all of it is in the audit trail, and in its file."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.browser.chromium import Visits
from tests.browser.example import Example
from tests.browser.furnished import furnish
from tests.browser.pages import lies

pytest_plugins = ["tests.browser.fixtures"]
pytestmark = pytest.mark.browser

ADMIN = "/admin/tasklock/"


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
