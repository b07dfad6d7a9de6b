"""One record that cannot be read takes nothing else away: list, page, REST, commands, sweep. And what is shown is one
line of readable characters, whoever chose them."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import time
from typing import Any

import pytest
import redis
from django.core.management import call_command

from django_tasklock import (
    ConcurrencyLimiter,
    TaskLockAcquireError,
    acquire_task_lock,
    get_lock_info,
    task_lock_context,
)
from django_tasklock.backends.contract.lists import Query
from django_tasklock.locks.holder import holder_json
from django_tasklock.operations import Actor, acts, get_lock, list_locks, release_lock, sweep
from django_tasklock.operations.audit import NewEntry, record_acts
from django_tasklock.operations.limits.permits import list_permits
from django_tasklock.texts import printable
from tests.support import environment
from tests.support.admin_pages import LIST
from tests.support.rest import KEY, Api, url

pytest_plugins = ["tests.support.redis_fixtures", "tests.support.admin_fixtures", "tests.support.rest_fixtures"]
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.redis]

TOKEN = "a" * 32
EVIL = "w\r\n2026-11-22 root: released \x1b[2J\x1b]0;x\x07\u202e\u2028\x9b1m"
UNSAFE = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e]")


def value(**changes: Any) -> str:
    """A record as the scripts write it, with something else in it."""
    now = int(time.time() * 1000)
    record = {"token": TOKEN, "holder": {"host": "far"}, "at": now - 5000, "fence": 7, "until": now + 60_000, **changes}
    return json.dumps(record, separators=(",", ":"))


BEGINS = f'{{"token":"{TOKEN}","holder":'
BAD: dict[str, Any] = {
    "in the year 300000": value(at=10**16, until=10**16),
    "before all years": value(at=-(10**16)),
    "asked for in no year": value(asked=10**400),
    "deep": BEGINS + "[" * 100_000,
    "deep in the host": BEGINS + '{"host":' + "[" * 900 + "]" * 900 + "}}",
    "surrogate": value(holder={"host": "\ud800", "task": "\udfff", "row": "testapp.video:\ud800"}),
    "NUL": value(holder={"host": "a\0b", "row": "testapp.plate:a\0b"}),
    "huge": value(holder={"host": "h" * 200_000, "task": "t" * 200_000}),
    "no row": value(holder={"host": "far", "row": f"testapp.video:{10**40}"}),
    "long number": value(holder={"pid": 10**300}),
    "evil": value(holder={"host": EVIL, "task": EVIL, "task_id": EVIL, "row": f"testapp.video:{EVIL}"}),
    "not ours": b"\xff\xfe",
}


@pytest.fixture
def bad(locks: None) -> Any:
    """All of them in the index, and a set, a broken name and a queue of another type; two good ones around them."""
    assert acquire_task_lock("good:1", 60)
    with redis.Redis.from_url(os.environ[environment.REDIS]) as client:
        now = int(time.time() * 1000)

        def index(key: bytes) -> None:
            client.zadd(b"task_lock#index", {key: now + 60_000})

        for name, text in BAD.items():
            client.set(f"task_lock:{name}", text, px=60_000)
            index(f"task_lock:{name}".encode())
        client.sadd("task_lock:set", "member")
        index(b"task_lock:set")
        client.set(b"task_lock:\xff\n\x1b[2J", value(), px=60_000)
        index(b"task_lock:\xff\n\x1b[2J")
        client.set("task_lock:odd queue", value(), px=60_000)
        index(b"task_lock:odd queue")
        client.set("task_lock#queue:odd queue", "no queue")
        assert acquire_task_lock("good:2", 60)
        yield client


TOTAL = len(BAD) + 5


def test_the_list_has_the_others(bad):
    for order in ("age", "left", "expiry"):
        page = list_locks(Query(order=order))
        assert page.total == len(page.locks) == TOTAL
    by_name = {lock.info.name: lock for lock in page.locks}
    assert {"good:1", "good:2", *BAD} < set(by_name)
    assert "unreadable" in by_name["deep"].info.holder
    assert "unreadable" in by_name["in the year 300000"].info.holder
    assert len(by_name["huge"].info.holder) < 1000
    for lock in page.locks:
        told = f"{lock.info.name}{lock.info.holder}{lock.info.task}{lock.info.task_id}{lock.row}"
        assert not UNSAFE.search(told)
        assert "\n" not in told
        told.encode()


def test_each_is_shown_and_can_be_released(bad):
    for name in [*BAD, "set"]:
        detail = get_lock(name)
        assert detail.lock is not None
        assert not UNSAFE.search(" ".join(detail.explanation))
        assert release_lock(name, by=Actor("me"), reason="it cannot be read"), name
        assert get_lock_info(name) is None
    assert len(acts(limit=100)) == len(BAD) + 1
    assert len(list_locks().locks) == 4


def test_commands(bad):
    out = io.StringIO()
    call_command("locks", stdout=out)
    for name in [*BAD, "set"]:
        call_command("locks", name, stdout=out)
    told = out.getvalue()
    assert not UNSAFE.search(told)
    assert "good:2" in told
    told.encode()
    out = io.StringIO()
    call_command("locks", "--json", stdout=out)
    assert len(json.loads(out.getvalue())["locks"]) == TOTAL


def test_rest(bad, rest):
    by_key = Api(headers={"authorization": f"Api-Key {KEY}"})
    assert len(by_key.get("/api/v1/tasks/locks?limit=100").json()["locks"]) == TOTAL
    for name in [*BAD, "set"]:
        assert by_key.get(url(name)).status_code == 200


def test_the_admin(bad, admin_settings, operator):
    assert len(operator.get(LIST).context["locks"]) == TOTAL
    for name in BAD:
        assert operator.get(f"{LIST}{name}/change/").status_code == 200


def test_the_sweep_sees_what_is_behind_them(bad):
    dead = json.dumps({**json.loads(holder_json()), "pid": 2**22 - 3, "boot": "0" * 12}, separators=(",", ":"))
    now = int(time.time() * 1000)
    bad.set("task_lock:dead", value(holder=json.loads(dead), at=now + 5), px=60_000)
    bad.zadd("task_lock#index", {"task_lock:dead": now + 60_000})
    report = sweep(pause=0)
    assert report.looked_at["locks"] >= TOTAL + 1
    assert [finding.name for finding in report.findings if finding.kind == "dead"] == ["dead"]


def test_permits(bad):
    """The same of concurrency limiters."""
    limiter = ConcurrencyLimiter("good", 2, timeout=60)
    assert limiter.acquire()
    soon = time.time() * 1000 + 60_000
    bad.zadd("task_lock#permits", {"set": soon, "huge": soon})
    bad.sadd("task_lock#permits:set", "member")
    bad.zadd("task_lock#permits:huge", {TOKEN: soon})
    bad.hset("task_lock#permits-by:huge", TOKEN, BAD["huge"])
    bad.set("task_lock#permits-queue:huge", "no queue")
    found = {view.name: view for view in list_permits().limiters}
    assert set(found) == {"good", "huge"}
    assert found["huge"].members[0].holder == "unreadable"
    limiter.release()


class TestChosenTexts:
    def test_the_error_of_a_busy_lock(self, locks, take):
        take("6", host=EVIL, task=EVIL, task_id=EVIL)
        with pytest.raises(TaskLockAcquireError) as caught, task_lock_context("6", raise_on_fail=True):
            pass
        assert not UNSAFE.search(str(caught.value))
        assert "\n" not in str(caught.value)

    def test_logs(self, locks, caplog):
        with caplog.at_level(logging.INFO, "django_tasklock"):
            logging.getLogger("django_tasklock").info("%s[%s] ended: %d", "task", EVIL, 5)
        assert caplog.messages[-1].startswith("task[w\\r\\n2026")
        assert not UNSAFE.search(caplog.messages[-1])
        assert caplog.messages[-1].endswith("ended: 5")

    def test_the_audit_trail(self, db):
        record_acts(
            Actor(EVIL), [NewEntry("video:6", "release", f"it\nhangs {EVIL}" + "x" * 5000, f"released\0 {EVIL}")]
        )
        [act] = acts("video:6")
        for text in (act.actor, act.reason, act.outcome):
            assert not UNSAFE.search(text)
            assert "\n" not in text
        assert act.reason.startswith("it hangs w 2026")
        assert len(act.reason) <= 1000

    @pytest.mark.parametrize(
        ("text", "clean"),
        [
            ("worker-1:42", "worker-1:42"),
            ("视频 é\u200d🏳", "视频 é\u200d🏳"),
            ("a\nb\tc", "a\\nb\\tc"),
            ("\x1b[31m\x85\ud800", "\\x1b[31m\\x85\\ud800"),
            ("\u202eabc\u2069", "\\u202eabc\\u2069"),
            ("x" * 300, "x" * 254 + "…"),
        ],
    )
    def test_one_function(self, text, clean):
        assert printable(text) == clean
