"""Every class of what is left behind: found by its evidence, put right by its own act, and only told in a dry run."""

from __future__ import annotations

import json
import os
import time
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from django.db import ProgrammingError, connection
from django.db.models import F, Q

from django_tasklock import StateGuard
from django_tasklock.backends import get_backend
from django_tasklock.backends.memory import reset
from django_tasklock.locks import holder as holders
from django_tasklock.operations import Actor, acts
from django_tasklock.operations.sweep import unclaimed
from tests.support.guards import GUARD, ONCE, new_token, no_guards
from tests.support.stores import clear
from tests.support.sweeping import (
    ELSEWHERE,
    claimed,
    claimed_by_dead,
    dead_holder,
    found,
    guarded_function,
    hold,
    lapsed,
    state,
    swept,
    tally_of,
)
from tests.testapp.models import PlainVideo, Track, Video

pytestmark = pytest.mark.django_db(transaction=True)

KINDS = [
    pytest.param("redis", marks=[pytest.mark.redis, pytest.mark.database], id="redis"),
    pytest.param("database", marks=pytest.mark.database, id="database"),
]


@pytest.fixture(params=KINDS[:1])
def store(request: pytest.FixtureRequest, settings: Any) -> str:
    """The store, empty; no guard is registered."""
    kind: str = request.param
    if kind == "database":
        settings.TASKLOCK = {"BACKEND": "django_tasklock.backends.database.DatabaseBackend"}
    no_guards()
    clear(kind)
    return kind


in_every_store = pytest.mark.parametrize("store", KINDS, indirect=True)


def lock_row(pk: int) -> str:
    return f"testapp.video:{pk}"


@in_every_store
def test_expired_entries_are_forgotten_and_only_they(store: str) -> None:
    for number in range(5):
        lapsed(f"gone:{number}")
    hold("alive")
    assert tally_of(swept(dry_run=True)) == {}
    assert get_backend().counts().orphaned == 5
    assert tally_of(swept()) == {}
    assert get_backend().counts().orphaned == 0
    assert get_backend().get("alive") is not None


def test_what_another_claim_has_taken_is_left_alone(store: str) -> None:
    """Either side may be a live worker, and the row refuses the stale one already."""
    guarded_function(guard=ONCE)
    row = claimed()
    hold(f"video:{row.pk}", row=lock_row(row.pk))
    before = state(row)
    assert tally_of(swept()) == {}
    assert get_backend().get(f"video:{row.pk}") is not None
    assert state(row) == before


@in_every_store
def test_a_lock_of_a_dead_process_is_released_and_its_row_put_back(store: str) -> None:
    guarded_function(guard=ONCE)
    row, _ = claimed_by_dead()
    dry_report = swept(dry_run=True)
    assert tally_of(dry_report) == {"dead": (1, 1, 0, 0)}
    assert get_backend().get(f"video:{row.pk}") is not None
    report = swept(by=Actor("night shift"))
    assert tally_of(report) == {"dead": (1, 1, 0, 0)}
    assert "dead" in found(report, "dead").why
    assert get_backend().get(f"video:{row.pk}") is None
    assert state(row) == ("uploading", "", 2)
    [act] = acts(f"video:{row.pk}")
    assert (act.actor, act.action) == ("night shift", "sweep")
    assert act.outcome == f"released, {lock_row(row.pk)} put back"
    assert tally_of(swept()) == {}


def test_whoever_is_elsewhere_or_no_process_is_not_dead(store: str) -> None:
    hold("elsewhere", ELSEWHERE)
    hold("nobody", "{}")
    hold("unique", holders.message_json("a.task", "an-id"))
    assert tally_of(swept()) == {}


def test_a_process_with_the_same_pid_is_another_one(store: str) -> None:
    """gold standard 8.18: the same host name and the same pid after a restart."""
    ours = json.loads(holders.holder_json())
    other = {**ours, "boot": "000000000000", "proc": ours["proc"].rpartition(":")[0] + ":1"}  # began at another time
    hold("before", json.dumps(other))
    hold("now", json.dumps({**ours, "boot": "000000000000"}))  # this process, as it was before a fork, say
    assert tally_of(swept()) == {"dead": (1, 1, 0, 0)}
    assert get_backend().get("before") is None
    assert get_backend().get("now") is not None


def test_a_lock_without_expiry_is_given_one(store: str) -> None:
    """gold standard 8.44: storage that was changed by hand, too."""
    with redis.Redis.from_url(os.environ["TASKLOCK_TEST_REDIS"]) as client:
        hold("forever", timeout=30_000)
        hold("short", timeout=90_000)
        client.persist("task_lock:forever")
        client.persist("task_lock:short")
        lapsed("theirs")
        client.set("task_lock:theirs", "by hand")
        assert tally_of(swept(dry_run=True))["no_expiry"] == (2, 2, 0, 0)
        assert client.ttl("task_lock:forever") == -1
        assert tally_of(swept()) == {"no_expiry": (3, 3, 0, 0)}, "the entry of what lapsed is found to be of no expiry"
        assert 59 <= client.ttl("task_lock:forever") <= 60, "at least a lease"
        assert 85 <= client.ttl("task_lock:short") <= 90, "what is left of its timeout"
        assert 3590 <= client.ttl("task_lock:theirs") <= 3600
        assert client.get("task_lock:theirs") == b"by hand"
        assert tally_of(swept()) == {}


@in_every_store
def test_a_claimed_row_without_a_lock_is_put_back(store: str) -> None:
    guarded_function(guard=ONCE)
    row, done = claimed(), claimed(state="ready", token="")
    assert tally_of(swept(dry_run=True)) == {"abandoned": (1, 1, 0, 0)}
    assert state(row)[0] == "processing"
    report = swept()
    assert tally_of(report) == {"abandoned": (1, 1, 0, 0)}
    finding = found(report, "abandoned")
    assert (finding.name, finding.row) == (f"video:{row.pk}", lock_row(row.pk))
    assert [act.outcome for act in acts(f"video:{row.pk}")] == [f"{lock_row(row.pk)} put back"]
    assert state(row) == ("uploading", "", 2)
    assert state(done) == ("ready", "", 1)
    assert tally_of(swept()) == {}


class TestUnclaimed:
    """A ``save()`` has set the state of a row back to the one that only a claim writes."""

    def set_back(self) -> Video:
        row: Video = claimed(state="ready", token="")
        Video(pk=row.pk, status="processing").save()
        return row

    @in_every_store
    def test_it_is_named_and_put_back_on_request_alone(self, store: str, caplog: Any) -> None:
        guarded_function(guard=ONCE)
        row, busy = self.set_back(), self.set_back()
        hold(f"video:{busy.pk}")
        report = swept()
        assert tally_of(report) == {"unclaimed": (2, 0, 1, 1)}
        assert "its state is 'processing', and nobody has claimed it" in found_kept(report).why
        assert "1 rows in a claimed state that nobody has claimed" in caplog.text
        assert tally_of(swept(dry_run=True, unclaimed=True)) == {"unclaimed": (2, 1, 1, 0)}
        assert state(row) == ("processing", "", 1)
        assert tally_of(swept(unclaimed=True)) == {"unclaimed": (2, 1, 1, 0)}
        assert [state(row), state(busy)] == [("uploading", "", 2), ("processing", "", 1)]
        assert [act.outcome for act in acts(f"video:{row.pk}")] == [f"{lock_row(row.pk)} put back"]

    def test_a_claimable_one_is_named_once_it_was_seen_for_longer_than_its_timeout(
        self, store: str, monkeypatch: Any
    ) -> None:
        guarded_function(guard=GUARD)
        row = self.set_back()
        now = time.time()

        def after(seconds: float) -> dict[str, Any]:
            monkeypatch.setattr(unclaimed, "time", SimpleNamespace(time=lambda: now + seconds))
            return tally_of(swept(unclaimed=True))

        assert after(0) == after(3500) == {}
        Video.objects.filter(pk=row.pk).update(lock_epoch=F("lock_epoch") + 1)  # it was claimed, and set back again
        assert after(3700) == {}
        assert after(7400) == {"unclaimed": (1, 0, 0, 1)}, "without --requeue there is nothing to do"
        assert state(row) == ("processing", "", 2)

    @pytest.mark.parametrize(
        "guard",
        [
            pytest.param(StateGuard(claim_from=["uploading"], claim_as="processing"), id="the body closes it"),
            pytest.param(StateGuard(claim_from=["a"], claim_as="b", done="processing"), id="another task's last"),
            pytest.param(
                StateGuard(claim_from=["uploading"], claim_as="processing", done="d", exclude=Q(progress=0)),
                id="excluded",
            ),
        ],
    )
    def test_a_state_in_which_rows_rest_is_none(self, store: str, guard: StateGuard) -> None:
        guarded_function(guard=guard)
        if guard.claim_as != "processing":
            guarded_function(guard=ONCE, name="other:{video_id}")
        self.set_back()
        assert tally_of(swept()) == {}


def found_kept(report: Any) -> Any:
    [finding] = [one for one in report.findings if one.came == "kept"]
    return finding


@pytest.mark.parametrize("evidence", ["token", "row", "name"])
def test_a_row_that_any_live_lock_speaks_for_is_left_alone(store: str, evidence: str) -> None:
    """Its state does not matter: a claimed row is the one that has a token."""
    guarded_function(name="video:{video_id}" if evidence == "name" else "some:{video_id.__class__}:other")
    row, moved_on = claimed(), claimed(state="transcoding")
    hold("by its body", row=lock_row(moved_on.pk))
    if evidence == "token":
        token = hold("chosen by the caller")
        Video.objects.filter(pk=row.pk).update(lock_token=token)
    elif evidence == "row":
        hold("chosen by the caller", row=lock_row(row.pk))
    else:
        hold(f"video:{row.pk}")
    report = swept()
    assert "abandoned" not in tally_of(report)
    assert report.looked_at["rows"] == 2
    get_backend().remove("by its body")
    assert tally_of(swept()) == {"abandoned": (1, 1, 0, 0)}
    assert state(moved_on) == ("processing", "", 2)


def test_a_row_without_a_token_is_put_back_if_its_lock_is_free(store: str) -> None:
    """Whose lock may have another name is not judged."""
    guarded_function(PlainVideo, name="video:{video_id}:{video_id.__class__}", guard=ONCE)
    guarded_function(PlainVideo, name="constant", guard=ONCE)
    claimed(PlainVideo)
    assert tally_of(swept()) == {}
    PlainVideo.objects.all().delete()
    no_guards()
    guarded_function(PlainVideo, guard=ONCE)
    free, busy = claimed(PlainVideo), claimed(PlainVideo)
    hold(f"video:{busy.pk}")
    assert tally_of(swept()) == {"abandoned": (1, 1, 0, 0)}
    free.refresh_from_db()
    busy.refresh_from_db()
    assert (free.status, busy.status) == ("uploading", "processing")
    assert get_backend().get(f"video:{free.pk}") is None


def test_of_two_guards_that_put_back_differently_none_is_chosen(store: str) -> None:
    guarded_function(guard=ONCE)
    guarded_function(guard=GUARD)
    row = claimed()
    report = swept()
    assert tally_of(report) == {"abandoned": (1, 0, 0, 1)}
    assert "several guards" in found(report, "abandoned").why
    assert state(row)[0] == "processing"


def test_a_row_that_a_constraint_keeps_as_it_is_keeps_no_other_from_being_put_back(store: str) -> None:
    """Of a project's own: one row waits at a time, and while this one was worked on another began to wait."""
    one_waits = StateGuard(field="token", claim_from=["waiting"], claim_as="running", done="done")
    guarded_function(Track, "track:{video_id}", guard=one_waits)
    guarded_function(guard=ONCE)
    track = Track.objects.create(token="running", lock_token=new_token(), lock_epoch=1)
    Track.objects.create(token="waiting")
    row = claimed()
    report = swept()
    assert tally_of(report) == {"abandoned": (2, 1, 0, 1)}
    assert [one.why for one in report.findings if "refuses the state 'waiting'" in one.why], report.findings
    assert state(row) == ("uploading", "", 2)
    track.refresh_from_db()
    assert (track.token, track.lock_epoch) == ("running", 1)


def test_a_row_that_a_trigger_keeps_as_it_is_keeps_no_other_from_being_put_back(store: str) -> None:
    """PostgreSQL's ``RAISE EXCEPTION``."""
    guarded_function(Track, "track:{video_id}", guard=ONCE)
    guarded_function(guard=ONCE)
    claimed(Track)
    row = claimed()

    def refuse(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if sql.startswith("UPDATE") and "testapp_track" in sql:
            raise ProgrammingError("not back")
        return execute(sql, params, many, context)

    with connection.execute_wrapper(refuse):
        report = swept()
    assert tally_of(report) == {"abandoned": (2, 1, 0, 1)}
    assert state(row) == ("uploading", "", 2)


def test_older_than_spares_what_is_young_and_leaves_rows_out(store: str) -> None:
    guarded_function()
    claimed()
    hold("young", dead_holder())
    report = swept(older_than=3600)
    assert tally_of(report) == {}
    assert any("no age" in note for note in report.left_out)
    time.sleep(0.05)
    assert tally_of(swept(older_than=0.04)) == {"dead": (1, 1, 0, 0)}


def test_its_times_may_be_timedeltas(store: str) -> None:
    guarded_function(guard=ONCE)
    row = claimed()
    left_out = swept(pause=timedelta(0), longest=timedelta(0)).left_out
    assert "time was over" in left_out[-1]
    assert swept(pause=timedelta(0), longest=timedelta(minutes=5)).swept == 1
    assert state(row) == ("uploading", "", 2)


def test_prefix_and_model_choose(store: str) -> None:
    guarded_function(guard=ONCE)
    guarded_function(PlainVideo, name="plain:{video_id}", guard=ONCE)
    row, plain = claimed(), claimed(PlainVideo)
    hold("a:1", dead_holder())
    hold("b:1", dead_holder(row=lock_row(4711)))
    assert tally_of(swept(prefix="a:")) == {"dead": (1, 1, 0, 0)}
    assert tally_of(swept(models=["testapp.Video"])) == {"dead": (1, 1, 0, 0), "abandoned": (1, 1, 0, 0)}
    assert tally_of(swept(prefix=f"plain:{plain.pk}")) == {"abandoned": (1, 1, 0, 0)}
    assert state(row)[0] == "uploading"


def test_a_guard_whose_model_is_gone_is_reported(store: str) -> None:
    """gold standard 8.45: removed from the code while locks are held."""
    GUARD.register("testapp.Removed")
    hold("video:1", dead_holder(row="testapp.removed:1"))
    report = swept()
    assert tally_of(report) == {"dead": (1, 1, 0, 0)}
    assert report.left_out == ("rows of testapp.Removed: there is no such model",)


@pytest.mark.redis
@pytest.mark.database
def test_with_a_cache_that_cannot_list_rows_are_swept_and_in_memory_not(settings: Any) -> None:
    settings.TASKLOCK = {"BACKEND": "django_tasklock.backends.cache.CacheBackend"}
    no_guards()
    clear("redis")
    guarded_function(guard=ONCE)
    guarded_function(PlainVideo, name="a:{video_id}:{video_id.__class__}", guard=ONCE)
    free, busy = claimed(), claimed()
    hold(f"video:{busy.pk}")
    report = swept()
    assert tally_of(report) == {"abandoned": (1, 1, 0, 0)}
    assert state(free)[0] == "uploading"
    assert state(busy)[0] == "processing"
    assert any("cannot list" in note for note in report.left_out)
    settings.TASKLOCK = {"BACKEND": "django_tasklock.backends.memory.MemoryBackend"}
    reset()
    report = swept()
    assert tally_of(report) == {}, "rows are not judged by locks of one process"
    assert any("one process" in note for note in report.left_out)
