"""Live locks by hand: released, asked for, with and without scripts, by keyboard, and while the world goes on."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.chromium import Visits
from tests.browser.example import Example
from tests.browser.pages import LIST, begin, confirm, detail, lies, names, refreshed, release, row, tab_to

pytest_plugins = ["tests.browser.fixtures"]
pytestmark = pytest.mark.browser

VIDEO = "video_processing_lock:1"
BUTTON = "#tasklock-release-selected"
MARKUP = "<img src=x onerror=alert(1)>"


def test_a_release_fences_the_row(visit: Visits, site: Example) -> None:
    """gold standard 8.43: the old holder goes on running, and can write nothing."""
    assert site.worker("claim", 1) == "holds"
    page = visit("operator")
    begin(page, VIDEO)
    expect(page.locator("#tasklock-chosen")).to_contain_text("videos.video:1")
    expect(page.locator("#content")).to_contain_text("whatever it still writes to that row is refused")
    assert lies(page) == []
    assert site.store.get(VIDEO) is not None  # looking changes nothing
    page.locator("#tasklock-confirm").click()  # the browser itself asks for a reason
    assert page.url.endswith("/release/")

    page.get_by_label("State of the row").select_option("failed")
    confirm(page, "its machine is on fire")
    expect(page.locator(".messagelist .success")).to_contain_text("Its row was taken from the old holder")
    expect(page.locator("#tasklock-history")).to_contain_text("its machine is on fire")
    expect(page.locator("#tasklock-history")).to_contain_text("operator")
    assert lies(page) == []
    assert site.store.get(VIDEO) is None
    after = site.row(1)
    assert (after["status"], after["lock_token"], after["lock_epoch"]) == ("failed", "", 2)
    assert site.worker("write", 1, progress=99) == "StaleClaim"
    assert site.row(1) == after
    page.goto("/admin/")
    expect(page.locator("#recent-actions-module")).to_contain_text(VIDEO)
    [entry] = site.sql("SELECT object_id, change_message, user_id FROM django_admin_log")
    assert entry["object_id"] == VIDEO
    page.locator("#recent-actions-module").get_by_role("link", name=VIDEO).click()
    expect(page.locator("#tasklock-history")).to_contain_text("its machine is on fire")


@pytest.mark.parametrize("scripts", [True, False], ids=["scripts", "no-scripts"])
def test_several_are_released_at_once(visit: Visits, site: Example, scripts: bool) -> None:
    for name in ("a", "b", "c", "d"):
        site.lock(name)
    page = visit("operator", scripts=scripts)
    page.goto(f"{LIST}?o=-age")
    page.locator(BUTTON).click()
    expect(page.locator(".messagelist")).to_contain_text("No lock was selected.")
    assert page.url.endswith("?o=-age")

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


def test_a_release_by_keyboard_alone(visit: Visits, site: Example) -> None:
    site.lock("6")
    page = visit("operator")
    page.goto(LIST)
    tab_to(page, "#tasklock-q")
    page.keyboard.type("6")
    page.keyboard.press("Enter")
    expect(page.locator("#tasklock-summary")).to_contain_text("1 lock found")
    tab_to(page, ".tasklock-name a")
    page.keyboard.press("Enter")
    expect(page.locator("#tasklock-facts")).to_be_visible()
    tab_to(page, "#tasklock-release")
    page.keyboard.press("Enter")
    expect(page.locator("#tasklock-confirm-form")).to_be_visible()
    tab_to(page, "textarea[name=reason]")
    page.keyboard.type("no mouse here")
    tab_to(page, "#tasklock-confirm")
    page.keyboard.press("Enter")
    expect(page.locator(".messagelist .success")).to_contain_text("was released")
    assert site.store.get("6") is None


def test_it_refreshes_itself_and_pauses_for_whoever_is_busy(visit: Visits, site: Example) -> None:
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
    hide = "Object.defineProperty(document, 'hidden', {get: () => %s, configurable: true})"
    page.evaluate(hide % "true")
    pauses(3)
    page.evaluate(hide % "false")
    page.get_by_role("button", name="Pause refreshing").click()
    pauses(4)
    page.get_by_role("button", name="Pause refreshing").click()
    refreshed(page)
    expect(row(page, "number 4")).to_be_visible()
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


def test_one_box_ticks_all_others_of_the_page(visit: Visits, site: Example) -> None:
    for number in range(3):
        site.lock(f"report:{number}")
    page = visit("operator")
    page.goto(LIST)
    page.get_by_label("Select all on this page").check()
    expect(page.locator("input[name=lock]:checked")).to_have_count(3)
    page.get_by_label("Select all on this page").uncheck()
    expect(page.locator("input[name=lock]:checked")).to_have_count(0)


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
    for text in (MARKUP, "<script>alert(2)</script>", "'\"><b>id</b>", "<i>host</i>"):
        expect(row(page, MARKUP)).to_contain_text(text)
    site.lock("another")
    refreshed(page)
    expect(row(page, "another")).to_be_visible()
    expect(row(page, MARKUP)).to_contain_text("<script>alert(2)</script>")
    row(page, MARKUP).get_by_role("link", name="<script>").click()
    expect(page.get_by_label("Task", exact=True)).to_have_value("<script>alert(2)</script>")

    page.get_by_role("link", name=MARKUP).click()
    expect(page.locator("#tasklock-facts")).to_contain_text("<i>host</i>")
    page.locator("#tasklock-release").click()
    expect(page.locator("#tasklock-chosen")).to_contain_text(MARKUP)
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
