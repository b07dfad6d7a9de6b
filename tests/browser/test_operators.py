"""Parked messages, sweeps and the audit trail in a browser, with ten thousand messages: that they can be read, wide and
narrow, light and dark, in Chinese, under another theme; every act by hand."""

from __future__ import annotations

import json

import pytest
from playwright.sync_api import Page, expect

from django_tasklock.types import AcquireRequest
from tests.browser.chromium import Visits
from tests.browser.example import Example
from tests.browser.pages import LIST, detail, lies, row, untranslated

pytest_plugins = ["tests.browser.fixtures"]
pytestmark = pytest.mark.browser

ADMIN = "/admin/tasklock/"
PARKED, SWEEPS, AUDIT = f"{ADMIN}parkedmessage/", f"{ADMIN}sweepentry/", f"{ADMIN}auditentry/"
LONG = "a-lock-with-a-name-that-has-no-end:" + "andgoeson" * 18
FITS = "document.scrollingElement.scrollWidth <= innerWidth"

PARK = """
import json, sys, time
from django.utils import timezone
from django_tasklock.backends.database.names import key_of
from django_tasklock.models import AuditEntry, ParkedMessage, SweepEntry
from django_tasklock.operations.sweep import sweep
from django_tasklock.operations.values import Actor

long, number = sys.argv[1], int(sys.argv[2])
now = int(time.time() * 1000)

def row(n, name, **more):
    text = json.dumps({"name": name})
    known = {"mode": "queue", "state": "parked", "task": "videos.tasks.transcode", "task_id": f"t-{n}", "message": text}
    known |= {"parked_at": now - 7_200_000 + n * 100, "changed_at": now - 5000, **more}
    return ParkedMessage(key=key_of(name), name=name, ticket=n, **known)

rows = [row(1, "video:1"), row(2, "video:2", state="promoted"), row(3, "video:2"), row(4, long, mode="coalesce")]
rows.append(row(5, "video:3", state="dead", problem="NotRegistered('videos.tasks.gone')", attempts=8))
rows.append(row(6, "video:4", task="videos.tasks.a_task_with_a_long_name_" * 3))
rows += [row(n, "video:1") for n in range(7, number)]
ParkedMessage.objects.bulk_create(rows, batch_size=500)
AuditEntry.objects.bulk_create(
    AuditEntry(at=timezone.now(), actor="ann", action=act, key=key_of(name), name=name, reason=why, outcome="released")
    for act, name, why in [("release", "video:1", "the worker was unplugged"), ("ask", long, "a deploy"),
                           ("reset_limit", "tavily", "a new key"), ("discard", "video:9", "x" * 300)] * 30
)
sweep(by=Actor("task django_tasklock.tasks.sweep_locks"), pause=0)
tally = {"found": 3, "acted": 2, "changed": 1, "kept": 0}
SweepEntry.objects.create(at=timezone.now(), actor="ann", swept=4, seconds=25.1, counts={"dead": tally})
"""


@pytest.fixture
def busy(site: Example) -> Example:
    """Something of everything, and much of it."""
    site.lock("video:1", seconds=3600, task_id="holds-1")
    site.lock("video:4", seconds=3600, task_id="holds-4")
    site.lock(LONG, seconds=3600)
    site.python(PARK, LONG, "10000")
    return site


def queue(site: Example) -> None:
    """Two wait for the same lock: whoever waits looks again within seconds, or the queue forgets it."""
    known = {"host": "far-away", "pid": 12, "boot": "waits", "task": "videos.tasks.report", "task_id": "waiter-1"}
    for n, holder in enumerate([known, {**known, "boot": "other", "pid": 13, "task_id": "waiter-2"}]):
        request = AcquireRequest("video:1", f"{n:032d}", 60_000, 60_000, json.dumps(holder, separators=(",", ":")))
        site.store.waiter(request).acquire()


def walk(page: Page, site: Example, visit: Visits, look: str) -> None:
    """Through every kind of page, looking at each."""

    def seen(what: str) -> None:
        visit.picture(page, f"{look}-{what}", full=False)
        assert page.evaluate(FITS), f"{what}: the page scrolls sideways"

    page.goto(PARKED)
    expect(page.locator("#result_list tbody tr")).to_have_count(50)
    expect(page.locator("#result_list")).to_contain_text("far-away:4711")
    seen("parked")
    page.locator("#result_list tbody th a").first.click()
    expect(page.locator("#content-main")).to_contain_text("far-away:4711")
    seen("parked-one")
    page.goto(AUDIT)
    expect(page.locator("#result_list tbody tr")).to_have_count(100)
    seen("audit")
    page.goto(SWEEPS)
    seen("sweeps")
    page.locator("#result_list tbody th a").first.click()
    seen("sweep-run")
    page.goto(f"{SWEEPS}add/")
    seen("sweep")
    queue(site)
    page.goto(detail("video:1"))
    expect(page.locator("#tasklock-waiters tbody tr")).to_have_count(2)
    seen("waiters")


@pytest.mark.parametrize(("dark", "width"), [(False, 1280), (True, 375)], ids=["light-wide", "dark-narrow"])
def test_every_page_can_be_read(visit: Visits, busy: Example, dark: bool, width: int) -> None:
    walk(visit("operator", dark=dark, width=width), busy, visit, f"operators-{'dark' if dark else 'light'}-{width}")


def test_in_chinese(visit: Visits, busy: Example) -> None:
    page = visit("operator", language="zh-CN")
    walk(page, busy, visit, "operators-chinese")
    for address in (PARKED, AUDIT, SWEEPS):
        page.goto(address)
        # what people did, and why, is shown as it was written
        assert untranslated(page, "#result_list thead") == [], address
    page.goto(PARKED)
    assert untranslated(page, "#result_list tbody tr:first-child .field-why") == []
    page.goto(f"{SWEEPS}add/")
    assert untranslated(page) == []
    page.goto(LIST)
    behind = row(page, "video:1").locator("td").last
    expect(behind).to_contain_text("2 个等待")
    assert behind.evaluate("one => one.clientWidth") >= 60, "each character is in a line of its own"


def test_under_unfold(visit: Visits, busy: Example) -> None:
    address = busy.serve("tests.browser.unfold_settings")
    page = visit("operator", dark=True, width=1280, address=address)
    queue(busy)
    for what, url in (("parked", PARKED), ("audit", AUDIT), ("sweep", SWEEPS), ("waiters", detail("video:1"))):
        page.goto(url)
        visit.picture(page, f"operators-unfold-{what}", full=False)
        assert page.evaluate(FITS), what


def test_acts(visit: Visits, busy: Example) -> None:
    """Discard some, publish what cannot be, sweep; all of it is in the audit trail, and in its file."""

    def choose(task_id: str, action: str, reason: str) -> None:
        line = page.locator("#result_list tbody tr").filter(has_text=f"[{task_id}]")
        line.get_by_role("checkbox").check()
        page.get_by_label("Action:").select_option(action)
        page.get_by_label("Reason").fill(reason)
        page.get_by_role("button", name="Go").click()

    page = visit("operator")
    page.goto(f"{PARKED}?state=dead")
    choose("t-5", "Discard", "its task is gone for good")
    expect(page.locator("#tasklock-chosen li")).to_have_text(["video:3: videos.tasks.transcode[t-5]"])
    assert lies(page) == []
    visit.picture(page, "parked-discard")
    page.locator("#tasklock-confirm").click()
    expect(page.locator(".messagelist .success")).to_contain_text("1 message: done.")
    page.goto(f"{PARKED}?q=t-1")
    choose("t-1", "Publish now", "now")
    expect(page.locator(".messagelist .warning")).to_contain_text("its lock is held")
    page.goto(f"{SWEEPS}add/")
    page.locator("#tasklock-confirm").click()
    expect(page.locator("#tasklock-warning")).to_contain_text("Nothing was changed")
    assert lies(page) == []
    page.goto(f"{AUDIT}?q=operator")
    expect(page.locator("#result_list tbody tr")).to_have_count(1)
    page.locator("#action-toggle").check()
    page.get_by_label("Action:").select_option("Download the selected as CSV")
    with page.expect_download() as downloading:
        page.get_by_role("button", name="Go").click()
    text = downloading.value.path().read_text()
    assert "its task is gone for good" in text
    assert text.count("\n") == 2
