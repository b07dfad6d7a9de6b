"""“Live locks”, the list: what it shows, how one finds something in it, and that it stays fresh by itself."""

from __future__ import annotations

import json
import time

import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.chromium import Visits
from tests.browser.example import Example
from tests.browser.pages import LIST, detail, lies, names, refreshed, row
from tests.support.sweeping import dead_holder

pytest_plugins = ["tests.browser.fixtures"]
pytestmark = pytest.mark.browser

MARKUP = "<img src=x onerror=alert(1)>"


def test_it_shows_who_holds_what(visit: Visits, site: Example) -> None:
    assert site.worker("claim", 1) == "holds"
    site.lock("report:monday", seconds=3600, lease=60)
    site.lock("for:ever")
    site.client.persist(site.key("for:ever"))
    page = visit("operator")
    page.goto("/admin/")
    page.get_by_role("link", name="Live locks").first.click()
    expect(page.get_by_role("heading", name="Live locks")).to_be_visible()

    line = row(page, "video_processing_lock:1")
    expect(line).to_contain_text("live")
    expect(line.get_by_role("link", name="videos.video:1")).to_have_attribute("href", "/admin/videos/video/1/change/")
    line = row(page, "report:monday")
    for text in ("far-away:4711", "videos.tasks.report", "t-1", "59 min", "lease: "):
        expect(line).to_contain_text(text)
    expect(line.locator("meter")).to_be_visible()
    expect(row(page, "for:ever")).to_contain_text("no expiry")
    assert lies(page) == []
    visit.picture(page, "list-light")

    row(page, "video_processing_lock:1").get_by_role("link", name="videos.video:1").click()
    panel = page.locator("#tasklock-panel")
    expect(panel).to_contain_text("live")
    assert lies(page, "#tasklock-panel") == []
    visit.picture(page, "panel")
    panel.get_by_role("link", name="video_processing_lock:1").click()
    expect(page.locator("#tasklock-row")).to_contain_text("row and lock belong together")
    assert lies(page) == []
    visit.picture(page, "lock-light")


def test_nothing_is_locked(visit: Visits, site: Example) -> None:
    page = visit("viewer")
    page.goto(LIST)
    expect(page.locator("#tasklock-empty")).to_have_text("Nothing is locked right now.")
    assert lies(page) == []
    visit.picture(page, "list-empty")
    page.get_by_label("Look up a name").fill("task_lock:6")
    page.get_by_role("button", name="Look up").click()
    assert page.url.endswith(detail("6"))
    expect(page.locator("#tasklock-one")).to_contain_text("free")
    assert lies(page) == []
    visit.picture(page, "lock-free")


def test_search_filters_and_order(visit: Visits, site: Example) -> None:
    for number, name in enumerate(("video:1", "video:2", "audio:1")):
        site.lock(name, seconds=600 - 100 * number, task="sounds.play" if name[0] == "a" else "videos.show")
        time.sleep(0.002)  # the store counts milliseconds
    site.lock("video:3", seconds=0.05, lease=0.05)
    site.client.persist(site.key("video:2"))
    page = visit("viewer")
    page.goto(LIST)
    assert names(page) == ["video:1", "video:2", "audio:1"]  # the longest held first
    page.locator("#tasklock-by-age").click()
    expect(page.locator("th[aria-sort=ascending]")).to_have_text("Held for")
    assert names(page) == ["audio:1", "video:2", "video:1"]
    page.locator("#tasklock-by-left").click()
    expect(page.locator("th[aria-sort]")).to_have_text("Time left")
    assert names(page) == ["audio:1", "video:2", "video:1"]
    page.locator("#tasklock-by-left").click()
    expect(page.locator("th[aria-sort=descending]")).to_have_text("Time left")
    assert names(page) == ["video:1", "video:2", "audio:1"]

    page.get_by_label("Name contains").fill("video")
    page.keyboard.press("Enter")
    expect(page.locator("#tasklock-summary")).to_contain_text("2 locks found")
    assert names(page) == ["video:1", "video:2"]
    visit.picture(page, "list-search")
    page.get_by_label("Task", exact=True).fill("sounds.play")
    page.get_by_role("button", name="Search").click()
    expect(page.locator("#tasklock-empty")).to_have_text("No lock matches.")
    page.locator("#tasklock-clear").click()
    row(page, "audio:1").get_by_role("link", name="sounds.play").click()
    expect(page.locator("#tasklock-summary")).to_contain_text("1 lock found")
    assert names(page) == ["audio:1"]
    page.locator("#tasklock-clear").click()

    page.locator("#tasklock-states").get_by_role("link", name="no expiry").click()
    expect(page.locator("#tasklock-states [aria-current]")).to_have_text("no expiry 1")
    assert names(page) == ["video:2"]
    page.locator("#tasklock-states").get_by_role("link", name="orphaned").click()
    expect(row(page, "video:3")).to_contain_text("ago")
    assert names(page) == ["video:3"]
    assert lies(page) == []
    visit.picture(page, "list-orphaned")
    listed = page.url
    page.get_by_role("link", name="video:3").click()
    expect(page).not_to_have_url(listed)
    assert lies(page) == []
    visit.picture(page, "lock-orphaned")


def test_pages(visit: Visits, site: Example) -> None:
    for number in range(230):
        site.lock(f"many:{number:03}")
    page = visit("viewer")
    page.goto(LIST)
    expect(page.locator("#tasklock-summary")).to_have_text("1 to 100 of 230 locks")
    first = names(page)
    page.locator("#tasklock-next").click()
    expect(page.locator("#tasklock-pager")).to_contain_text("Page 2 of 3")
    second = names(page)
    page.locator("#tasklock-next").click()
    expect(page.locator("#tasklock-summary")).to_have_text("201 to 230 of 230 locks")
    assert sorted(first + second + names(page)) == [f"many:{number:03}" for number in range(230)]
    expect(page.locator("#tasklock-next")).to_have_count(0)
    visit.picture(page, "list-last-page")
    page.locator("#tasklock-previous").click()
    page.locator("#tasklock-first").click()
    assert names(page) == first
    page.locator("#tasklock-last").click()
    expect(page.locator("#tasklock-pager")).to_contain_text("Page 3 of 3")
    page.goto(f"{LIST}?from=100000")
    expect(page.locator("#tasklock-summary")).to_have_text("201 to 230 of 230 locks")


def asked(page: Page) -> list[str]:
    """The requests for a fresh list, from now on."""
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url) if "fragment=1" in request.url else None)
    return requests


def test_it_refreshes_itself_and_pauses_for_whoever_is_busy(visit: Visits, site: Example) -> None:
    site.lock("first")
    page = visit("operator")
    page.clock.install()
    page.goto(LIST)
    expect(row(page, "first")).to_be_visible()
    page.evaluate("window.mark = 'not loaded again'")
    requests = asked(page)

    site.lock("second")
    refreshed(page)
    expect(row(page, "second")).to_be_visible()
    expect(page.locator("#tasklock-announce")).to_have_text("2 locks")  # for those who listen
    site.store.remove("first")
    refreshed(page)
    expect(row(page, "first")).to_have_count(0)

    row(page, "second").get_by_role("checkbox").check()  # a list that moves under the hand is dangerous
    page.get_by_role("heading", name="Live locks").click()
    site.lock("third")
    before = len(requests)
    refreshed(page, 60)
    expect(row(page, "third")).to_have_count(0)
    assert len(requests) == before
    row(page, "second").get_by_role("checkbox").uncheck()
    page.get_by_role("heading", name="Live locks").click()
    refreshed(page)
    expect(row(page, "third")).to_be_visible()

    hide = "Object.defineProperty(document, 'hidden', {get: () => %s, configurable: true})"
    page.evaluate(hide % "true")
    site.lock("fourth")
    before = len(requests)
    refreshed(page, 60)
    assert len(requests) == before
    page.evaluate(hide % "false")
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    expect(row(page, "fourth")).to_be_visible()

    page.get_by_role("button", name="Pause refreshing").click()
    site.lock("fifth")
    before = len(requests)
    refreshed(page, 60)
    assert len(requests) == before
    page.get_by_role("link", name="Refresh").click()  # asked for, it comes
    expect(row(page, "fifth")).to_be_visible()
    assert page.evaluate("window.mark") == "not loaded again"
    assert lies(page) == []


def test_the_page_of_a_lock_refreshes_itself(visit: Visits, site: Example) -> None:
    page = visit("viewer")
    page.clock.install()
    page.goto(detail("6"))
    expect(page.locator("#tasklock-one")).to_contain_text("free")
    site.lock("6")
    refreshed(page)
    expect(page.locator("#tasklock-facts")).to_contain_text("far-away:4711")
    site.store.remove("6")
    refreshed(page)
    expect(page.locator("#tasklock-facts")).to_have_count(0)


def test_markup_is_text(visit: Visits, site: Example) -> None:
    """gold standard 8.42: names, tasks, holders and reasons come from elsewhere."""
    site.lock(MARKUP, task="<script>alert(2)</script>", task_id="'\"><b>id</b>", host="<i>host</i>")
    page = visit("operator")
    dialogs: list[str] = []
    page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    page.clock.install()
    page.goto(LIST)
    for text in (MARKUP, "<script>alert(2)</script>", "'\"><b>id</b>", "<i>host</i>"):
        expect(row(page, MARKUP)).to_contain_text(text)
    site.lock("another")
    refreshed(page)
    expect(row(page, "another")).to_be_visible()
    expect(row(page, MARKUP)).to_contain_text("<script>alert(2)</script>")
    visit.picture(page, "list-markup")
    row(page, MARKUP).get_by_role("link", name="<script>").click()
    expect(page.get_by_label("Task", exact=True)).to_have_value("<script>alert(2)</script>")

    page.get_by_role("link", name=MARKUP).click()
    expect(page.locator("#tasklock-facts")).to_contain_text("<i>host</i>")
    page.locator("#tasklock-release").click()
    expect(page.locator("#tasklock-held")).to_contain_text(MARKUP)
    page.get_by_label("Reason").fill("<b>because</b>")
    page.locator("#tasklock-confirm").click()
    expect(page.locator(".messagelist")).to_contain_text(MARKUP)
    expect(page.locator("#tasklock-history")).to_contain_text("<b>because</b>")
    for wrong in ("#content img", "#content script", "#content b", "#content i", ".messagelist img"):
        assert page.locator(wrong).count() == 0
    page.goto("/admin/")
    expect(page.locator("#recent-actions-module")).to_contain_text("<img src=x")
    assert page.locator("#content img").count() == 0
    assert dialogs == []


def test_one_box_ticks_all_others_of_the_page(visit: Visits, site: Example) -> None:
    for number in range(3):
        site.lock(f"report:{number}", seconds=3600, lease=60)
    page = visit("operator")
    page.goto(LIST)
    everything = page.get_by_label("Select all on this page")
    boxes = page.locator("input[name=lock]")
    everything.check()
    for number in range(3):
        expect(boxes.nth(number)).to_be_checked()
    visit.picture(page, "list-all-ticked")
    boxes.nth(1).uncheck()
    expect(everything).not_to_be_checked()
    boxes.nth(1).check()
    expect(everything).to_be_checked()
    everything.uncheck()
    expect(page.locator("input[name=lock]:checked")).to_have_count(0)
    answers: list[Route] = []
    page.route("**/*fragment=1*", lambda answer: answers.append(answer))
    page.locator("[data-tasklock-live]").first.evaluate("part => part.dataset.old = 'old'")
    with page.expect_request("**/*fragment=1*"):
        page.locator("#tasklock-refresh").click()
    while not answers:  # it was sent, and may not be held back yet
        page.wait_for_timeout(20)
    everything.check()  # before the part is there that is shown anew
    for answer in answers:
        answer.continue_()
    page.unroute("**/*fragment=1*")  # what the page asks for by itself from here on
    expect(page.locator("[data-old]")).to_have_count(0)
    expect(everything).to_be_checked()
    page.get_by_role("button", name="Release the selected locks").click()
    expect(page.locator("#tasklock-chosen tbody tr")).to_have_count(3)
    assert lies(page) == []


def test_a_dead_holder_looks_dead(visit: Visits, site: Example) -> None:
    site.lock("report:dead", seconds=3600, lease=60, **json.loads(dead_holder()))
    site.lock("report:live", seconds=3600, lease=60)
    site.lock("report:for ever", seconds=3600)
    site.client.persist(site.key("report:for ever"))
    page = visit("operator")
    page.goto(LIST)
    expect(row(page, "report:dead")).to_contain_text("holder has ended")
    expect(row(page, "report:dead").locator("meter")).to_have_count(0)
    expect(row(page, "report:for ever").locator("meter")).to_have_count(0)
    expect(row(page, "report:for ever")).to_contain_text("no limit")
    assert lies(page) == []
    visit.picture(page, "list-dead")
    page.get_by_role("link", name="holder has ended 1").click()
    assert names(page) == ["report:dead"]
    assert lies(page) == []
    visit.picture(page, "list-only-dead")
    page.goto(detail("report:dead"))
    expect(page.locator("#tasklock-release")).to_be_visible()
    expect(page.locator("#tasklock-ask")).to_have_count(0)
    assert lies(page) == []
    visit.picture(page, "lock-dead")
    page.locator("#tasklock-release").click()
    expect(page.locator("#content")).to_contain_text("whose process has ended")
    assert lies(page) == []
    visit.picture(page, "release-dead")
