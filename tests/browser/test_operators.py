"""The pages of parked messages, sweeps and the audit trail in a browser, with a hundred thousand locks and ten thousand
messages: that they can be read, wide and narrow, light and dark, in Chinese, under another theme; every act by hand."""

from __future__ import annotations

import json
import time

import pytest
from playwright.sync_api import Page, expect

from django_tasklock.types import AcquireRequest
from tests.browser.chromium import Visits
from tests.browser.example import Example
from tests.browser.pages import HAN, LIST, confirm, detail, lies, row, untranslated

pytest_plugins = ["tests.browser.fixtures"]
pytestmark = pytest.mark.browser

ADMIN = "/admin/tasklock/"
PARKED, SWEEP, AUDIT = f"{ADMIN}parkedmessage/", f"{ADMIN}lock/sweep/", f"{ADMIN}auditentry/"
LONG = "a-lock-with-a-name-that-has-no-end:" + "andgoeson" * 18
WIDE = "all => all.filter((one) => one.scrollWidth > one.parentElement.clientWidth).map((one) => one.id)"

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
finding = {"kind": "dead", "name": long, "why": "its holder's process is gone", "came": "swept"}
report = {"swept": 4, "published": 1, "classes": {"dead": tally}, "findings": [finding], "unlisted": 12,
          "looked_at": {"locks": 100000}, "left_out": ["time was up after 25 s: " + long], "seconds": 25.1}
SweepEntry.objects.create(at=timezone.now(), actor="ann", swept=4, seconds=25.1, report=json.dumps(report))
"""


def many(site: Example, number: int) -> None:
    """So many locks, each held by somebody far away, as the store has them."""
    at = int(time.time() * 1000)
    pipeline = site.client.pipeline(transaction=False)
    for n in range(number):
        holder = {
            "host": f"worker-{n % 40}",
            "pid": 4711,
            "boot": f"b{n}",
            "task": "videos.tasks.report",
            "task_id": f"r-{n}",
        }
        value = {"token": f"{n:032x}", "holder": holder, "at": at - n, "fence": at * 1000 + n, "until": at + 36_000_000}
        key = site.key(f"report:{n}")
        pipeline.set(key, json.dumps(value, separators=(",", ":")), px=3_600_000)
        pipeline.zadd("task_lock#index", {key: at + 3_600_000})
        if n % 5000 == 4999:
            pipeline.execute()
    pipeline.execute()


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


def walk(page: Page, site: Example, visit: Visits, look: str, *, colours: bool = True, narrow: bool = False) -> None:
    """Through every kind of page, looking at each."""

    def seen(what: str, *, full: bool = True) -> None:
        visit.picture(page, f"{look}-{what}", full=full and (not narrow or what != "parked"))
        assert lies(page, "#content-main", colours=colours) == [], what
        assert page.locator("#content-main .tasklock-table").evaluate_all(WIDE) == [], f"{what}: scrolls sideways"

    page.goto(PARKED)
    expect(page.locator("#tasklock-table tbody tr")).to_have_count(50)
    expect(page.locator("#tasklock-table")).to_contain_text("far-away:4711")
    seen("parked")
    page.goto(f"{PARKED}t-100/change/")
    seen("parked-one")
    page.goto(f"{PARKED}act/?do=discard&message=t-4&message=t-5&message=t-6&message=gone")
    seen("parked-act")
    page.goto(AUDIT)
    expect(page.locator("#tasklock-table tbody tr")).to_have_count(100)
    visit.picture(page, f"{look}-audit", full=False)
    assert lies(page, "#content-main", colours=colours) == []
    page.goto(SWEEP)
    seen("sweep")
    page.locator("#tasklock-table tbody a").first.click()
    expect(page.locator("#tasklock-classes")).to_be_visible()
    seen("sweep-run")
    queue(site)
    page.goto(detail("video:1"))
    expect(page.locator("#tasklock-waiters tbody tr")).to_have_count(2)
    seen("waiters", full=False)


@pytest.mark.parametrize(("dark", "width"), [(False, 1280), (True, 375)], ids=["light-wide", "dark-narrow"])
def test_every_page_can_be_read(visit: Visits, busy: Example, dark: bool, width: int) -> None:
    many(busy, 100_000)
    page = visit("operator", dark=dark, width=width)
    walk(page, busy, visit, f"operators-{'dark' if dark else 'light'}-{width}", narrow=width < 500)


def test_in_chinese(visit: Visits, busy: Example) -> None:
    page = visit("operator", language="zh-CN")
    walk(page, busy, visit, "operators-chinese")
    messages = (PARKED, f"{PARKED}t-100/change/", f"{PARKED}act/?do=discard&message=t-5")
    parts = dict.fromkeys((*messages, SWEEP), "#content-main")
    # what people did, and why, is shown as it was written
    parts |= {AUDIT: "#tasklock-table thead", detail("video:1"): "#tasklock-waiters"}
    for address, part in parts.items():
        page.goto(address)
        assert HAN.search(page.locator(part).inner_text()), address
        assert untranslated(page, part) == [], address
    page.goto(LIST)
    behind = row(page, "video:1").locator("td").last
    expect(behind).to_contain_text("2 个等待")
    assert behind.evaluate("one => one.clientWidth") >= 60, "each character is in a line of its own"


def test_under_unfold(visit: Visits, busy: Example) -> None:
    address = busy.serve("tests.browser.unfold_settings")
    page = visit("operator", dark=True, width=1280, address=address)
    queue(busy)
    for what, url in (("parked", PARKED), ("audit", AUDIT), ("sweep", SWEEP), ("waiters", detail("video:1"))):
        page.goto(url)
        expect(page.locator("#content-main, .tasklock").first).to_be_visible()
        visit.picture(page, f"operators-unfold-{what}", full=False)
        assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth"), what


def test_acts(visit: Visits, busy: Example) -> None:
    """Discard some, publish what cannot be, sweep; all of it is in the audit trail, and in its file."""
    page = visit("operator")
    page.goto(f"{PARKED}?state=dead")
    page.get_by_label("Select t-5").check()
    page.get_by_role("button", name="Discard the selected").click()
    expect(page.locator("#tasklock-chosen tbody tr")).to_have_count(1)
    confirm(page, "its task is gone for good")
    expect(page.locator(".messagelist .success")).to_contain_text("1 message: done.")
    page.goto(f"{PARKED}t-1/change/")
    page.locator("#tasklock-publish").click()
    confirm(page, "now")
    expect(page.locator(".messagelist .warning")).to_contain_text("its lock is held")
    page.goto(SWEEP)
    page.locator("#tasklock-confirm").click()
    expect(page.locator("#tasklock-dry-run")).to_be_visible()
    page.goto(f"{AUDIT}?who=operator")
    expect(page.locator("#tasklock-table tbody tr")).to_have_count(1)
    with page.expect_download() as downloading:
        page.locator("#tasklock-export-csv").click()
    text = downloading.value.path().read_text()
    assert "its task is gone for good" in text
    assert text.count("\n") == 2
    page.goto("/admin/tasklock/ratelimit/")
    page.locator("#tasklock-sections").get_by_role("link", name="Parked messages").click()
    expect(page.locator("#tasklock-sections a[aria-current]")).to_have_text("Parked messages")
