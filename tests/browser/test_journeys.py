"""An operator finds and releases locks in a real browser: by keyboard, while the list moves and the store goes away.

Names that are markup are text. A console that says anything fails the test, and the policy is strict.
"""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.chromium import Visits
from tests.browser.example import Example
from tests.browser.pages import LIST, begin, confirm, lies, names, refreshed, release, row, tab_to

pytest_plugins = ["tests.browser.fixtures"]
pytestmark = pytest.mark.browser

VIDEO = "video_processing_lock:1"
MARKUP = "<img src=x onerror=alert(1)>"


def test_a_lock_is_found_and_released_by_keyboard_alone_and_its_row_is_fenced(visit: Visits, site: Example) -> None:
    """gold standard 8.43: the old holder goes on running, and can write nothing."""
    assert site.worker("claim", 1) == "holds"
    page = visit()
    page.goto(LIST)
    tab_to(page, "#tasklock-q")
    page.keyboard.type("processing")
    page.keyboard.press("Enter")
    expect(page.locator("#tasklock-summary")).to_contain_text("1 lock found")
    tab_to(page, ".tasklock-name a")
    page.keyboard.press("Enter")
    expect(page.locator("#tasklock-facts")).to_be_visible()
    tab_to(page, "#tasklock-release")
    page.keyboard.press("Enter")
    expect(page.locator("#tasklock-chosen")).to_contain_text("videos.video:1")
    expect(page.locator("#content")).to_contain_text("whatever it still writes to that row is refused")
    assert lies(page) == []
    page.locator("#tasklock-confirm").click()  # the browser itself asks for a reason
    assert page.url.endswith("/release/")
    assert site.store.get(VIDEO) is not None  # looking changes nothing

    page.get_by_label("State of the row").select_option("failed")
    tab_to(page, "textarea[name=reason]")
    page.keyboard.type("its machine is on fire")
    tab_to(page, "#tasklock-confirm")
    page.keyboard.press("Enter")
    expect(page.locator(".messagelist .success")).to_contain_text("Its row was taken from the old holder")
    assert lies(page) == []
    assert site.store.get(VIDEO) is None
    after = site.row(1)
    assert (after["status"], after["lock_token"], after["lock_epoch"]) == ("failed", "", 2)
    assert site.worker("write", 1, 99) == "StaleClaim"
    assert site.row(1) == after
    page.goto("/admin/")
    page.locator("#recent-actions-module").get_by_role("link", name=VIDEO).click()
    expect(page.locator("#tasklock-history")).to_contain_text("its machine is on fire")
    expect(page.locator("#tasklock-history")).to_contain_text("operator")


def test_several_are_released_at_once_without_scripts(visit: Visits, site: Example) -> None:
    for name in ("a", "b", "c"):
        site.lock(name)
    page = visit(scripts=False)
    page.goto(f"{LIST}?o=-age")
    for name in ("a", "b"):
        row(page, name).get_by_role("checkbox").check()
    page.locator("#tasklock-release-selected").click()
    expect(page.get_by_role("heading", name="Release 2 locks?")).to_be_visible()
    site.store.remove("b")
    site.lock("b", task_id="new")  # between the confirmation and the act
    confirm(page, "spring cleaning")
    expect(page.locator(".messagelist .success")).to_have_text("1 lock was released.")
    expect(page.locator(".messagelist .warning")).to_contain_text("1 lock changed hands")
    assert page.url.endswith("?o=-age")
    assert sorted(names(page)) == ["b", "c"]


def test_the_list_refreshes_itself_and_pauses_for_whoever_is_busy(visit: Visits, site: Example) -> None:
    site.lock("first")
    page = visit()
    page.clock.install()
    page.goto(LIST)
    expect(row(page, "first")).to_be_visible()
    page.evaluate("window.mark = 'not loaded again'")
    site.lock("second")
    site.lock(MARKUP, task="<script>alert(2)</script>", host="<i>host</i>")
    refreshed(page)
    expect(row(page, "second")).to_be_visible()
    for text in (MARKUP, "<script>alert(2)</script>", "<i>host</i>"):  # gold standard 8.42; else the console says it
        expect(row(page, MARKUP)).to_contain_text(text)
    assert page.locator("#tasklock-table").locator("img, script, i").count() == 0
    expect(page.locator("#tasklock-announce")).to_have_text("3 locks")  # for those who listen
    site.store.remove("first")
    refreshed(page)
    expect(row(page, "first")).to_have_count(0)

    def pauses(number: int) -> None:
        """Nothing moves, and nobody is asked."""
        requests: list[str] = []
        page.on("request", lambda request: requests.append(request.url))
        site.lock(f"number {number}")
        refreshed(page, 60)
        page.wait_for_timeout(200)
        expect(row(page, f"number {number}")).to_have_count(0)
        assert requests == []

    every = page.get_by_label("Select all on this page")
    every.check()
    expect(page.locator("input[name=lock]:checked")).to_have_count(2)
    every.uncheck()
    box = row(page, "second").get_by_role("checkbox")
    box.check()  # a list that moves under the hand is dangerous
    page.get_by_role("heading", name="Live locks").click()
    pauses(1)
    box.uncheck()
    row(page, "second").get_by_role("link", name="second").focus()  # who moves by keyboard stays where he is
    pauses(2)
    page.evaluate("document.activeElement.blur()")
    page.get_by_role("button", name="Pause refreshing").click()
    pauses(3)
    page.get_by_role("button", name="Pause refreshing").click()
    refreshed(page)
    expect(row(page, "number 3")).to_be_visible()
    assert page.evaluate("window.mark") == "not loaded again"
    assert lies(page) == []


def test_the_store_goes_away_and_comes_back(visit: Visits, site: Example) -> None:
    site.lock("6")
    page, form = visit(), visit()
    page.clock.install()
    page.goto(LIST)
    begin(form, "6")
    visit.expect_status(503)

    site.redis.kill()
    refreshed(page)
    expect(page.locator("#tasklock-stale")).to_be_visible()
    expect(row(page, "6")).to_be_visible()  # what was known is still there
    assert lies(page) == []
    with form.expect_response(lambda response: response.request.method == "POST") as answer:
        confirm(form, "now")
    assert answer.value.status == 503
    expect(form.locator("#tasklock-message")).to_be_visible()
    assert lies(form) == []
    form.goto("/admin/videos/video/1/change/")
    expect(form.locator("#tasklock-panel")).to_contain_text("cannot be reached")

    site.redis.start()
    site.lock("7")
    refreshed(page)
    expect(row(page, "7")).to_be_visible()
    expect(page.locator("#tasklock-stale")).to_be_hidden()
    release(form, "7", "it is back")
