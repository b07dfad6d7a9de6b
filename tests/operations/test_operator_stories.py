"""The five operator stories of the specification, each walked by curl, by command and in the browser.

Against the running example project: its server, its Redis, its Celery worker. Leases are seconds, so that what takes
a minute in production takes a moment here; what dies is killed with ``kill -9``.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser import pages
from tests.browser.chromium import Visits
from tests.browser.example import Example, until
from tests.support.sweeping import dead_holder

pytest_plugins = ["tests.browser.fixtures"]
pytestmark = [pytest.mark.browser, pytest.mark.workers]

LEASE = 4.0
API = "/api/v1/tasks"
TASK = "videos.tasks.process_video"


@pytest.fixture(scope="module")
def shared_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Example]:
    """The example as it is, with short leases."""
    with Example(tmp_path_factory.mktemp("stories"), lease=LEASE) as example:
        yield example


def lock_of(pk: int) -> str:
    return f"video_processing_lock:{pk}"


def curl(site: Example, name: str) -> Any:
    """What curl is told of a lock that is held."""
    answer = site.curl(f"{API}/{name}/lock")
    assert answer.code == 200, answer
    return answer.json


def command(site: Example, name: str) -> Any:
    """What ``manage.py locks NAME`` tells a program."""
    return site.manage("locks", name, "--json").json


def is_free(site: Example, name: str) -> bool:
    answer = site.curl(f"{API}/{name}/lock")
    assert answer.code in (200, 404), answer
    return answer.code == 404


def gone(site: Example, name: str, seconds: float = 30) -> None:
    """Wait until nobody has it; curl says so too, asked once: it is not to be asked all the time."""
    until(lambda: site.store.get(name) is None, seconds, f"{name} is free")
    assert is_free(site, name)


def swept(site: Example, *arguments: str, ok: tuple[int, ...] = (0,)) -> dict[str, int]:
    """How many of each class ``manage.py sweep_locks`` acted on, or would have."""
    report = site.manage("sweep_locks", "--json", "--pause", "0.1", *arguments, ok=ok).json
    return {kind: tally["acted"] for kind, tally in report["counts"].items() if tally["acted"]}


def working(site: Example, *videos: int, lease: float | None = None) -> subprocess.Popen[Any]:
    """A worker that has begun to transcode each of these videos."""
    worker = site.celery(slots=len(videos), lease=lease)
    site.worker("publish", *videos)
    for pk in videos:
        until(lambda pk=pk: site.row(pk)["progress"] > 2, what=f"video {pk} is transcoded")
    return worker


def claimed(site: Example, pk: int) -> bool:
    return bool(site.row(pk)["lock_token"])


def test_1_a_crashed_worker_is_put_right_by_hand(site: Example, visit: Visits) -> None:
    worker = working(site, 1, 2, 3, lease=60)
    assert curl(site, lock_of(1))["alive"] is True
    assert curl(site, lock_of(1))["task"] == TASK
    assert curl(site, lock_of(1))["row"]["agrees"] is True

    site.end(worker)  # kill -9: nobody gives anything back, and the lease has most of a minute to go

    for pk in (1, 2, 3):
        assert curl(site, lock_of(pk))["alive"] is False
        assert claimed(site, pk)
    epoch = site.row(1)["lock_epoch"]

    done = site.curl(f"{API}/{lock_of(1)}/release-lock", "--request", "POST", "--data", "reason=its machine is gone")
    assert done.code == 200, done
    assert done.json["fenced"] is True
    site.manage("locks", "--release", lock_of(2), "--reason", "its machine is gone")
    page = visit()
    pages.release(page, lock_of(3), "its machine is gone")

    for pk in (1, 2, 3):
        assert is_free(site, lock_of(pk))
        row = site.row(pk)
        assert (row["lock_token"], row["lock_epoch"], row["status"]) == ("", epoch + 1, "uploading")
    acts = site.sql("SELECT actor, action, reason FROM tasklock_audit ORDER BY name")
    assert {act["reason"] for act in acts} == {"its machine is gone"}
    assert [act["actor"] for act in acts][0::2] == ["key grafana", "operator"]

    for member in site.curl(f"{API}/concurrency/transcode").json["members"]:  # which last as long as their leases, too
        site.manage("limits", "transcode", "--release", member["fingerprint"])
    site.celery(slots=3)
    site.worker("publish", 1, 2, 3)
    site.finish()
    until(lambda: [site.row(pk)["status"] for pk in (1, 2, 3)] == ["ready"] * 3, what="another worker has done it")


def test_1_a_crashed_worker_is_put_right_by_the_sweep(site: Example, visit: Visits) -> None:
    """gold standard 8.14: the sweep waits for evidence, and is no second runner."""
    short, long = working(site, 1, lease=1), working(site, 2, lease=60)
    assert swept(site, "--check") == {}
    site.end(short)
    site.end(long)
    gone(site, lock_of(1))
    assert claimed(site, 1)
    page = visit()
    page.goto(pages.detail(lock_of(1)))
    expect(page.locator("#tasklock-explanation")).to_contain_text("the lease of its last holder ended")

    left = {"dead": 1, "abandoned": 1}
    assert swept(site, "--check", ok=(1,)) == left
    assert claimed(site, 1)
    assert swept(site, "--requeue") == left
    assert not claimed(site, 1)
    assert not claimed(site, 2)
    assert swept(site, "--check") == {}

    site.celery(slots=2)
    site.finish()
    until(lambda: [site.row(pk)["status"] for pk in (1, 2)] == ["ready"] * 2, what="published again, and done")
    assert is_free(site, lock_of(2))


def test_2_the_store_is_down(site: Example, visit: Visits) -> None:
    site.lock("6")
    page = visit()
    page.goto(pages.LIST)
    worker = site.worker
    assert worker("claim", 1) == "holds"

    site.redis.kill()

    for arguments in ([f"{API}/locks"], [f"{API}/6/lock"], [f"{API}/6/release-lock", "--request", "POST"]):
        answer = site.curl(*arguments)
        assert answer.code == 503
        assert int(answer.headers["retry-after"]) > 0
        assert answer.json["code"] == "store_unavailable"
    for arguments in (["locks"], ["locks", "6"], ["locks", "--release", "6"], ["sweep_locks", "--check"]):
        answer = site.manage(*arguments, ok=(2,))
        assert "Traceback" not in answer.headers["stderr"]
        assert answer.headers["stderr"].strip()
    visit.expect_status(503)
    for address in (pages.LIST, pages.detail("6")):
        response = page.goto(address)
        assert response is not None
        assert response.status == 503
        expect(page.locator("#content")).to_contain_text("does not answer")

    # Work goes on: the row judges alone.
    assert worker("write", 1, 40) == "done"
    assert worker("claim", 2) == "holds"
    assert worker("end", 2) == "ended"
    assert site.row(2)["status"] == "ready"
    assert worker("claim", 2)["reason"] == "invalid_state"

    site.redis.start()
    assert site.curl(f"{API}/locks").code == 200
    page.goto(pages.LIST)
    expect(page.locator("#content")).not_to_contain_text("does not answer")
    site.manage("locks")


def test_3_a_lock_is_stuck(site: Example, visit: Visits) -> None:
    """gold standard 8.43: what was looked at is released, not whoever came after."""
    for name in ("6", "7", "8"):
        site.lock(name)
        site.client.persist(f"task_lock:{name}")
    assert site.client.ttl("task_lock:6") == -1  # as the specification has it: redis-cli TTL "task_lock:6"
    assert "far-away" in site.client.get("task_lock:6")

    for name in ("6", "7", "8"):
        shown = curl(site, name)
        assert (shown["state"], shown["ttl"], shown["alive"]) == ("no_expiry", None, None)
        assert shown["explanation"]
    why = "It has no expiry: it stays locked until it is released."
    assert why in curl(site, "6")["explanation"]
    assert why in command(site, "6")["explanation"]
    page = visit()
    page.goto(pages.detail("6"))
    expect(page.locator("#tasklock-explanation")).to_contain_text(why)

    seen = site.curl(f"{API}/6/lock").headers["etag"]
    pages.begin(page, "6")
    site.client.delete("task_lock:6")
    site.lock("6", task_id="a new one")
    late = site.curl(f"{API}/6/release-lock", "--request", "POST", "--header", f"If-Match: {seen}")
    assert (late.code, late.json["code"]) == (412, "changed_hands")
    pages.confirm(page, "too late")
    expect(page.locator("#content, .messagelist")).to_contain_text(["changed hands"])
    assert curl(site, "6")["task_id"] == "a new one"

    site.manage("locks", "--release", "7")
    assert is_free(site, "7")
    pages.release(page, "6", "nobody works on it")
    assert is_free(site, "6")
    assert swept(site, "--check", ok=(1,)) == {"no_expiry": 1}
    assert swept(site) == {"no_expiry": 1}
    assert 0 < site.client.ttl("task_lock:8") <= 3600


def test_4_a_long_task_is_left_alone_and_can_be_asked_to_stop(site: Example, visit: Visits) -> None:
    """gold standard 8.14: a live task is not swept, however long it runs."""
    working(site, 1)
    first = curl(site, lock_of(1))
    page = visit()
    page.goto(pages.LIST)
    while curl(site, lock_of(1))["held_for"] < LEASE * 2:
        assert swept(site, "--check") == {}
        time.sleep(0.5)
    later = curl(site, lock_of(1))
    assert (later["fingerprint"], later["alive"]) == (first["fingerprint"], True)
    assert 0 < later["ttl"] <= LEASE < later["held_for"]
    assert command(site, lock_of(1))["lock"]["fingerprint"] == first["fingerprint"]
    expect(pages.row(page, lock_of(1))).to_contain_text(TASK)
    progress = site.row(1)["progress"]
    assert swept(site) == {}
    until(lambda: site.row(1)["progress"] != progress, what="it goes on")

    asked = site.curl(f"{API}/{lock_of(1)}/ask-release", "--request", "POST", "--data", "reason=a deploy")
    assert (asked.code, asked.json["outcome"]) == (200, "asked")
    gone(site, lock_of(1))
    until(lambda: not claimed(site, 1), 10, "it has given the row back")
    assert site.row(1)["status"] == "uploading"
    assert site.sql("SELECT actor, action, reason FROM tasklock_audit") == [
        {"actor": "key grafana", "action": "ask", "reason": "a deploy"}
    ]


def test_5_a_periodic_check_finds_what_is_stuck(site: Example, visit: Visits) -> None:
    """gold standard 8.15 and 8.46: what lapsed does not stay in the index, and the trail says who did what and why."""
    site.lock("late", seconds=600, **json.loads(dead_holder()))
    site.lock("fine")
    page = visit()
    page.goto(pages.LIST)
    expect(pages.row(page, "late")).to_be_visible()
    assert curl(site, "late")["alive"] is False
    assert swept(site, "--check", ok=(1,)) == {"dead": 1}
    assert {lock["name"] for lock in site.curl(f"{API}/locks").json["locks"]} == {"late", "fine"}

    site.celery("--beat", "--schedule", str(site.folder / "beat"), TASKLOCK_SWEEP="1")

    gone(site, "late")  # beat has had it swept
    assert not is_free(site, "fine")
    assert swept(site, "--check") == {}
    expect(pages.row(page, "late")).to_have_count(0)  # without a reload
    [act] = command(site, "late")["history"]
    assert "sweep" in act["actor"]
    assert act["reason"]
