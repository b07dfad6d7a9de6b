"""``manage.py sweep_locks``, and the same as a Celery task."""

from __future__ import annotations

import io
import json
import re
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from django_tasklock.backends import get_backend
from django_tasklock.operations import acts
from django_tasklock.operations.sweep import PAUSE
from django_tasklock.tasks import sweep_locks as task
from tests.support.guards import GUARD, ONCE, no_guards
from tests.support.stores import clear
from tests.support.sweeping import between_passes, claimed, dead_holder, guarded_function, hold, lapsed

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def nothing_left() -> None:
    no_guards()
    clear("redis")


def run(*arguments: str, **options: Any) -> tuple[str, str]:
    """What it said, on stdout and on stderr."""
    out, err = io.StringIO(), io.StringIO()
    call_command("sweep_locks", "--pause=0", *arguments, stdout=out, stderr=err, no_color=True, **options)
    return out.getvalue(), err.getvalue()


def leave() -> Any:
    """An expired entry, a lock of a dead process, and an abandoned row."""
    guarded_function(guard=ONCE)
    lapsed("old")
    hold("report:7", dead_holder())
    return claimed()


def test_it_tells_what_it_did() -> None:
    row = leave()
    out, err = run()
    assert re.search(r"^ +1 locks whose holder's process is dead: 1 released, 0 changed, 0 left", out, re.MULTILINE)
    assert f"swept: video:{row.pk} (testapp.video:{row.pk}): claimed, and no live lock" in out
    assert re.search(
        r"^2 things were repaired\. Checked: 1 locks, 1 rows, 0 messages, in \d+\.\d s\.$", out, re.MULTILINE
    )
    assert err == ""
    assert get_backend().get("report:7") is None
    assert get_backend().counts().orphaned == 0
    [act] = acts("report:7")
    assert act.actor.startswith("sweep_locks, ")
    out, err = run()
    assert out.startswith("0 things were repaired.")


def test_a_dry_run_changes_nothing() -> None:
    row = leave()
    for _ in range(2):
        out, _ = run("--dry-run")
        assert "2 things would be repaired" in out
        assert "would be swept: report:7: process" in out
    row.refresh_from_db()
    assert row.status == "processing"
    assert get_backend().get("report:7") is not None
    assert get_backend().counts().orphaned == 1
    assert acts("report:7") == []


def test_check_changes_nothing_and_says_so_by_its_status() -> None:
    lapsed("free")
    out, _ = run("--check")
    assert "0 things would be repaired" in out
    leave()
    for _ in range(2):
        with pytest.raises(CommandError, match=r"2 to be swept\.") as failed:
            run("--check")
        assert failed.value.returncode == 1


def test_json_is_one_document_on_stdout() -> None:
    GUARD.register("testapp.Removed")
    leave()
    out, err = run("--json", "--older-than=3600")
    document = json.loads(out)
    assert document["swept"] == 0
    assert len(document["left_out"]) == 2
    assert err == ""
    document = json.loads(run("--json", "--dry-run")[0])
    assert document["dry_run"] is True
    assert document["counts"]["dead"] == {"found": 1, "acted": 1, "changed": 0, "kept": 0}
    assert list(document["counts"]) == ["no_expiry", "dead", "abandoned", "unclaimed", "lapsed"]
    [found] = [one for one in document["findings"] if one["kind"] == "dead"]
    assert found["name"] == "report:7"
    assert "token" not in out


@pytest.mark.parametrize("wrong", ["--older-than=0", "--older-than=x", "--older-than=nan", "--pause=-1"])
def test_usage_errors(wrong: str) -> None:
    with pytest.raises(CommandError, match="number of seconds|invalid float|not be negative"):
        run(wrong)


def test_as_a_celery_task(monkeypatch: pytest.MonkeyPatch) -> None:
    row = leave()
    pauses = between_passes(monkeypatch, lambda: None)
    assert task.name == "django_tasklock.tasks.sweep_locks"
    report = task(models=["testapp.Video"])
    assert json.loads(json.dumps(report))["counts"]["abandoned"]["acted"] == 1
    row.refresh_from_db()
    assert row.status == "uploading"
    assert task(dry_run=True)["swept"] == 1
    assert set(pauses) == {PAUSE}
