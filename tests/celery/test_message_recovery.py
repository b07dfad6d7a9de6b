"""What dead workers had fetched is put back where no worker lives, and counted where it lies."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command

from django_tasklock.celery import parked_messages
from django_tasklock.celery.messages import marks
from django_tasklock.operations import sweep
from django_tasklock.operations.state import count_messages
from tests.support.celery_site.site import Site

pytest_plugins = ["tests.support.celery_site.fixtures"]
SITE_TASKS = ["tests.support.celery_site.once_tasks"]

LEASE = 4.0
LATE: dict[str, Any] = {"task_acks_late": True, "task_reject_on_worker_lost": True}
PATIENCE = 90.0
"""Seconds within which all happens, on a machine that is busy with other tests."""


@pytest.fixture
def site(celery_site: Site) -> Site:
    """One whose workers renew; what is not acknowledged early comes back if they die."""
    celery_site.configure(tasklock={"MESSAGE_LEASE": LEASE}, **LATE)
    return celery_site


def lapsed(*arguments: str) -> dict[str, Any]:
    """What ``sweep_locks`` says of messages."""
    out = StringIO()
    call_command("sweep_locks", "--pause=0.2", "--json", *arguments, stdout=out, stderr=StringIO())
    document = json.loads(out.getvalue())
    return {**document["counts"]["lapsed"], "findings": [f for f in document["findings"] if f["kind"] == "lapsed"]}


def test_the_sweep_puts_back_what_dead_workers_had(site: Site) -> None:
    """No worker lives: it is the sweep that lets one be started, and that one runs it all."""
    gate = site.gate()
    worker = site.worker(prefetch=2)
    site.publish("late_hold", "once", until=gate)
    site.started("once")
    ahead = site.publish("hold", "ahead")
    site.wait_until(lambda: [mark.messages for mark in marks.read_marks(site.app)] == [2])
    worker.kill()
    assert (site.waiting(), count_messages()[site.queue()]) == (0, 2)
    site.wait_until(lambda: lapsed("--dry-run")["acted"] == 2, PATIENCE)
    assert site.waiting() == 0
    swept: list[dict[str, Any]] = []

    def all_put_back() -> bool:
        swept.extend(lapsed()["findings"])
        return site.waiting() == 2

    site.wait_until(all_put_back, PATIENCE)
    assert sorted(one["holder"].rpartition(".")[2].partition("[")[0] for one in swept) == ["hold", "late_hold"]
    assert str(ahead) in "".join(one["holder"] for one in swept)
    assert count_messages()[site.queue()] == 2
    gate.open()
    site.worker()
    assert [site.started(key, number, PATIENCE) for key, number in (("once", 2), ("ahead", 1))]
    site.wait_until(lambda: count_messages()[site.queue()] == 0, PATIENCE)


def test_a_living_workers_messages_are_left_alone(site: Site) -> None:
    gate = site.gate()
    site.worker()
    site.publish("hold", "long", until=gate)
    site.started("long")
    seen: set[float] = set()

    def renewed() -> bool:
        report = sweep(pause=0.2)
        assert report.counts["lapsed"].found == 0, report.findings
        seen.update(mark.at for mark in marks.read_marks(site.app))
        return len(seen) > 6

    site.wait_until(renewed, PATIENCE)
    gate.open()
    site.wait_until(lambda: site.events("end"))
    assert len(site.events("start")) == 1


def test_messages_are_counted_wherever_they_are(site: Site) -> None:
    """Two run, one is parked, two wait; and one in a queue that nobody consumes."""
    gate = site.gate()
    site.worker(concurrency=2)
    site.publish("queued_hold", "a", until=gate)
    site.started("a")
    site.publish("queued_hold", "a", until=gate)
    site.wait_until(lambda: parked_messages("hold:a", state="parked"))
    site.publish("hold", "b", until=gate)
    site.started("b")
    for key in ("c", "d"):
        site.publish("hold", key, until=gate)
    site.publish("hold", "e", options={"queue": site.queue("other")})
    site.wait_until(lambda: count_messages() == {site.queue(): 5, site.queue("other"): 1})
    assert site.waiting() == 2
    gate.open()
    site.wait_until(lambda: count_messages() == {site.queue(): 0, site.queue("other"): 1}, PATIENCE)


def test_a_broker_that_is_down_is_left_out(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    site.broker.kill()
    report = sweep(pause=0)
    assert any(note.startswith("messages of dead workers: the broker could not be asked") for note in report.left_out)
    assert count_messages() is None
    site.broker.start()


def test_a_broker_that_has_just_started(site: Site) -> None:
    """Workers that were without it may still have to renew what they have."""
    site.configure(tasklock={"MESSAGE_LEASE": 3600})
    report = sweep(pause=0)
    assert any("workers have a lease's time to renew theirs" in note for note in report.left_out)
