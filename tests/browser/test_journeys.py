"""An operator finds and releases locks in a real browser: by keyboard, while the list moves and the store goes away.

Names that are markup are text. A console that says anything fails the test, and the policy is strict.
"""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.browser.chromium import Visits
from tests.browser.example import Example
from tests.browser.furnished import furnish
from tests.browser.pages import LIST, begin, confirm, lies, names, refreshed, release, row, tab_to

pytest_plugins = ["tests.browser.fixtures"]
pytestmark = pytest.mark.browser

ADMIN = "/admin/tasklock/"
VIDEO = "video_processing_lock:1"
BUTTON = "#tasklock-release-selected"
MARKUP = "<img src=x onerror=alert(1)>"
GO = re.compile("Go|Run")  # until Django 5.2, from then on


def test_a_lock_is_found_and_released_by_keyboard_alone_and_its_row_is_fenced(visit: Visits, site: Example) -> None:
    """gold standard 8.43: the old holder goes on running, and can write nothing."""
    assert site.worker("claim", 1) == "holds"
    page = visit("operator")
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
    assert site.worker("write", 1, progress=99) == "StaleClaim"
    assert site.row(1) == after
    page.goto("/admin/")
    page.locator("#recent-actions-module").get_by_role("link", name=VIDEO).click()
    expect(page.locator("#tasklock-history")).to_contain_text("its machine is on fire")
    expect(page.locator("#tasklock-history")).to_contain_text("operator")


@pytest.mark.parametrize("scripts", [True, False], ids=["scripts", "no-scripts"])
def test_several_are_released_at_once(visit: Visits, site: Example, scripts: bool) -> None:
    for name in ("a", "b", "c", "d"):
        site.lock(name)
    page = visit("operator", scripts=scripts)
    page.goto(f"{LIST}?o=-age")
    if scripts:
        page.get_by_label("Select all on this page").check()
        expect(page.locator("input[name=lock]:checked")).to_have_count(4)
        page.get_by_label("Select all on this page").uncheck()
    for name in ("a", "b", "c"):
        row(page, name).get_by_role("checkbox").check()
    site.store.remove("b")
    site.lock("b", task_id="new")  # between the list and the confirmation
    page.locator(BUTTON).click()
    expect(page.get_by_role("heading", name="Release 2 locks?")).to_be_visible()
    expect(page.locator("#tasklock-warning")).to_contain_text("b")
    if scripts:
        assert lies(page) == []
    site.store.remove("c")
    site.lock("c", task_id="new")  # between the confirmation and the act
    confirm(page, "spring cleaning")
    expect(page.locator(".messagelist .success")).to_have_text("1 lock was released.")
    expect(page.locator(".messagelist .warning")).to_contain_text("1 lock changed hands")
    assert page.url.endswith("?o=-age")
    assert sorted(names(page)) == ["b", "c", "d"]
    [told] = site.sql("SELECT name, reason FROM tasklock_audit WHERE outcome LIKE 'released%'")
    assert told == {"name": "a", "reason": "spring cleaning"}


def test_the_list_refreshes_itself_and_pauses_for_whoever_is_busy(visit: Visits, site: Example) -> None:
    site.lock("first")
    page = visit("operator")
    page.clock.install()
    page.goto(LIST)
    expect(row(page, "first")).to_be_visible()
    page.evaluate("window.mark = 'not loaded again'")
    site.lock("second")
    refreshed(page)
    expect(row(page, "second")).to_be_visible()
    expect(page.locator("#tasklock-announce")).to_have_text("2 locks")  # for those who listen
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
    page, form = visit("operator"), visit("operator")
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


def test_markup_is_text(visit: Visits, site: Example) -> None:
    """gold standard 8.42: names, tasks, holders and reasons come from elsewhere."""
    site.lock(MARKUP, task="<script>alert(2)</script>", task_id="'\"><b>id</b>", host="<i>host</i>")
    page = visit("operator")
    dialogs: list[str] = []
    page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    page.clock.install()
    page.goto(LIST)
    site.lock("another")
    refreshed(page)
    expect(row(page, "another")).to_be_visible()
    for text in (MARKUP, "<script>alert(2)</script>", "'\"><b>id</b>", "<i>host</i>"):
        expect(row(page, MARKUP)).to_contain_text(text)
    page.get_by_role("link", name=MARKUP).click()
    expect(page.locator("#tasklock-facts")).to_contain_text("<i>host</i>")
    page.locator("#tasklock-release").click()
    expect(page.locator("#tasklock-chosen")).to_contain_text(MARKUP)
    confirm(page, "<b>because</b>")
    expect(page.locator(".messagelist")).to_contain_text(MARKUP)
    expect(page.locator("#tasklock-history")).to_contain_text("<b>because</b>")
    for wrong in ("#content img", "#content script", "#content b", "#content i", ".messagelist img"):
        assert page.locator(wrong).count() == 0
    page.goto("/admin/")
    expect(page.locator("#recent-actions-module")).to_contain_text("<img src=x")
    assert page.locator("#content img").count() == 0
    assert dialogs == []


def choose(page: Page, task_id: str, action: str, reason: str) -> None:
    """Tick a message, choose the action, type the reason beside it, go."""
    page.locator("#result_list tbody tr").filter(has_text=f"[{task_id}]").get_by_role("checkbox").check()
    page.get_by_label("Action:").select_option(action)
    page.get_by_label("Reason").fill(reason)
    page.get_by_role("button", name=GO).click()


def test_messages_a_sweep_and_the_trail_of_it(visit: Visits, site: Example) -> None:
    furnish(site)
    page = visit("operator")
    page.goto(f"{ADMIN}parkedmessage/?state=dead")
    choose(page, "t-5", "Discard", "its task is gone for good")
    expect(page.locator("#tasklock-chosen li")).to_have_text(["video:3: videos.tasks.transcode[t-5]"])
    assert lies(page) == []
    page.locator("#tasklock-confirm").click()
    expect(page.locator(".messagelist .success")).to_contain_text("1 message: done.")
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
