"""``manage.py locks``: list, explain, release, ask."""

from __future__ import annotations

import io
import json
import re
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from django_tasklock import TaskLock, get_lock_info, operations
from django_tasklock.backends import get_backend
from django_tasklock.operations import acts
from tests.support.guards import ONCE, no_guards
from tests.support.public import in_store, raw_redis
from tests.support.stores import clear
from tests.support.sweeping import claimed, dead_holder, guarded_function, hold, lapsed
from tests.testapp.models import Video

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def store() -> None:
    """Empty; no guard is registered."""
    no_guards()
    clear("redis")


def run(*arguments: str, **options: Any) -> str:
    """What it said on stdout; nothing is said on stderr."""
    out, err = io.StringIO(), io.StringIO()
    try:
        call_command("locks", *arguments, stdout=out, stderr=err, no_color=True, **options)
    finally:
        assert err.getvalue() == ""
    return out.getvalue()


@pytest.mark.parametrize("command", [["locks"], ["sweep_locks", "--pause=0"]], ids=lambda words: words[0])
def test_on_request_it_looks_for_locks_that_other_code_has_set(command: list[str]) -> None:
    out, err = io.StringIO(), io.StringIO()
    name = 'video_processing:"*7"'
    with raw_redis() as client:
        client.set(f"task_lock:{name}", "worker-3", ex=3600)
        client.set("task_lock:6", "worker-3")
        client.hset("task_lock:hash", "a", "b")
        client.mset({f"other:{number}": "x" for number in range(3000)})
        assert read_json()["total"] == 0
        call_command(*command, "--scan", stdout=out, stderr=err, no_color=True)
        assert err.getvalue() == "Locks that other code has set and no list had: 3.\n"
        shown = {lock["name"]: lock["state"] for lock in read_json()["locks"]}
        assert shown.keys() == {name, "6", "hash"}
        if command[0] == "sweep_locks":
            assert client.ttl("task_lock:6") > 0
        else:
            assert "6: no expiry" in out.getvalue()
        assert client.get(f"task_lock:{name}") == "worker-3"
    assert operations.scan_locks() == 0


@pytest.mark.parametrize("backend", ["database", "memory"])
def test_another_store_has_nothing_to_scan(settings: Any, backend: str) -> None:
    for _ in in_store(backend, settings):
        with pytest.raises(CommandError, match="only Redis can"):
            run("--scan")


def read_json(*arguments: str) -> Any:
    return json.loads(run(*arguments, "--json"))


def a_guarded_lock() -> tuple[str, Any]:
    guarded_function(guard=ONCE)
    row = claimed()
    name = f"video:{row.pk}"
    token = hold(name, row=f"testapp.video:{row.pk}", task="videos.process", task_id="t-1")
    Video.objects.filter(pk=row.pk).update(lock_token=token)
    return name, row


def test_it_lists_what_is_held() -> None:
    name, row = a_guarded_lock()
    hold("other", dead_holder())
    lapsed("gone")
    out = run()
    [line] = [line for line in out.splitlines() if line.startswith(name)]
    assert re.search(r"live, elsewhere:1 \(videos.process\[t-1\]\), held for \d+ s, lease ends in \d+ s", line)
    assert f"row testapp.video:{row.pk}" in line
    info = get_lock_info(name)
    assert info is not None
    assert line.endswith(f"[{info.fingerprint}]")
    assert "its process is dead" in out
    assert "2 shown of 2 that are held." in out
    assert "gone" not in out
    assert run("--state=dead").startswith("other: dead, ")
    assert "1 shown of 1 that are dead." in run("--state=dead")
    assert re.match(r"gone: orphaned, (elsewhere:1|unknown), lapsed \d+ s ago", run("--state=orphaned"))
    assert [one["name"] for one in read_json("--task=videos.process")["locks"]] == [name]
    assert [one["name"] for one in read_json("--search=OTHE")["locks"]] == ["other"]
    document = read_json("--limit=1")
    assert (document["total"], len(document["locks"])) == (2, 1)
    assert "1 shown of 2" in run("--limit=1")


def test_the_command_explains_the_state_of_one_lock() -> None:
    """gold standard 8.46: why it is blocked."""
    name, row = a_guarded_lock()
    assert TaskLock(name).acquire(blocking=False) is False
    out = run(name)
    assert out.startswith(f"{name}: live")
    assert len(out.splitlines()) > 1
    document = read_json(f"task_lock:{name}")
    assert document["name"] == name
    assert document["lock"]["task_id"] == "t-1"
    assert document["explanation"]
    assert (document["row"]["model"], document["row"]["pk"]) == ("testapp.video", str(row.pk))
    assert document["row"]["agrees"] is True
    assert document["row"]["state"] == "processing"
    free = read_json("nobody has it")
    assert free["lock"] is None
    assert free["explanation"]
    assert run("nobody has it").strip() == " ".join(free["explanation"])


def test_a_release_fences_the_row_and_is_written_down() -> None:
    name, row = a_guarded_lock()
    out = run("--release", name, "--reason", "stuck since noon")
    assert out.startswith(f"The lock “{name}” was released. Its row was taken from the old holder")
    assert get_backend().get(name) is None
    row.refresh_from_db()
    assert (row.status, row.lock_token, row.lock_epoch) == ("uploading", "", 2)
    [act] = acts(name)
    assert act.actor.startswith("locks, ")
    assert (act.action, act.reason) == ("release", "stuck since noon")
    assert "stuck since noon" in run(name)
    with pytest.raises(CommandError, match=f"Nothing was done: “{name}” is free"):
        run("--release", name)


def test_only_the_holder_that_was_shown_is_released() -> None:
    """gold standard 8.43: it changed hands."""
    name, row = a_guarded_lock()
    with pytest.raises(CommandError, match="changed hands") as failed:
        run("--release", name, "--fingerprint=000000000000")
    assert failed.value.returncode == 1
    assert get_backend().get(name) is not None
    row.refresh_from_db()
    assert row.lock_epoch == 1
    info = get_lock_info(name)
    assert info is not None
    document = json.loads(run("--release", name, "--fingerprint", info.fingerprint, "--json"))
    assert document.pop("before")["holder"] == "elsewhere:1 (videos.process[t-1])"
    assert document == {"name": name, "outcome": "released", "fenced": True, "alive": None}


def test_asking_a_holder() -> None:
    with TaskLock("mine") as lock:
        assert "The holder of “mine” was asked to give it back." in run("--ask=mine")
        assert "asked to give it back" in run()
        lock.lease.checked_at = 0.0
        with pytest.raises(Exception, match="asked to give it back"):
            lock.ensure_held()
    with pytest.raises(CommandError, match="is free"):
        run("--ask=mine")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (["name", "--release=other"], "name once"),
        (["--release=a", "--ask=b"], "not allowed with"),
        (["--limit=0"], "limit must be"),
        (["--state=odd"], "invalid choice"),
        (["\x07"], "printable"),
        ([""], "empty"),  # of a variable that is not set: the list would pass for a release that was done
        (["--release="], "empty"),
        (["--ask="], "empty"),
        (["name", "--release="], "name once"),
    ],
)
def test_usage_errors(wrong: list[str], says: str) -> None:
    with pytest.raises(CommandError, match=says):
        run(*wrong)


def test_a_store_that_is_down(settings: Any) -> None:
    settings.TASKLOCK = {"LOCATION": "redis://127.0.0.1:1/0"}
    for arguments in [], ["name"], ["--release=name"], ["--ask=name"]:
        with pytest.raises(CommandError, match="could not be asked") as failed:
            run(*arguments)
        assert failed.value.returncode == 2
