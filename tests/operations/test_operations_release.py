"""An operator takes a lock away: nobody else's, with the row fenced first, whatever happens meanwhile.

Gold standard 8.43. The interleavings are forced: what somebody else does is done at the very
step of the release that is named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth import get_user_model
from django.db import transaction

from django_tasklock import Claim, StaleClaim, StateGuard, TaskLockError, model_lock, signals
from django_tasklock.backends import get_backend
from django_tasklock.exceptions import TransactionOpen
from django_tasklock.guards.guard import registered
from django_tasklock.locks.functions import ProcessLock
from django_tasklock.operations import Actor, Outcome, acts, get_lock, release_lock
from django_tasklock.operations.locks import release as release_module
from django_tasklock.types import Released
from tests.support.guards import GUARD, heard, only_guards
from tests.support.public import in_store, raw_redis
from tests.support.stores import an_ask, granted, stores
from tests.testapp.models import Track, Video

pytestmark = pytest.mark.django_db(transaction=True)

BY = Actor("somebody")


@pytest.fixture(params=stores("redis", "database"))
def store(request, settings) -> Iterator[str]:
    """The name of the store in force, empty."""
    yield from in_store(request.param, settings)


@model_lock(Video, "video:{pk}", pk="pk", guard=GUARD)
def process(pk: int, meanwhile: Callable[[], None]) -> str:
    meanwhile()
    return "finished"


OWN = registered()[-1:]


@pytest.fixture(autouse=True)
def guards() -> Iterator[None]:
    """Guards that other modules registered on this model would add states."""
    with only_guards(OWN):
        yield


@pytest.fixture
def video() -> Video:
    return Video.objects.create()


class Elsewhere(ProcessLock):
    """Is held by nobody of this thread: as by a process of its own."""

    def __init__(self, name: str) -> None:
        super().__init__(name, on_unavailable=None)


class Worker:
    """Has the lock of a video, and its row."""

    def __init__(self, video: Video, *, claims: bool = True) -> None:
        self.video = video
        self.lock = Elsewhere(f"video:{video.pk}")
        self.lock.row = f"testapp.video:{video.pk}"
        assert self.lock.acquire()
        self.token = self.lock.token
        self.claim = Claim(Video, video.pk, GUARD, self.token)
        if claims:
            self.claim.claim()

    def ends(self) -> Released:
        """As the decorator ends: first the row, then the lock."""
        self.claim.finish()
        return self.lock.release()

    def loses(self) -> None:
        """Its lease ends while it runs on."""
        assert get_backend().remove(self.lock.name, self.token)


def row(video: Video) -> tuple[str, str, int]:
    video.refresh_from_db()
    return video.status, video.lock_token, video.lock_epoch


def shown(video: Video) -> str:
    lock = get_lock(f"video:{video.pk}").lock
    assert lock is not None
    return lock.info.fingerprint


@pytest.fixture
def at(monkeypatch) -> Callable[[str, Callable[[], object]], None]:
    """``at("fence", act)``: ``act`` happens when the release has looked and is about to fence, or to take away."""

    def force(step: str, act: Callable[[], object]) -> None:
        owner, verb = {"fence": (release_module, "_revoke_claim"), "take away": (get_backend(), "remove")}[step]
        real = getattr(owner, verb)

        def first_act(*args: Any) -> Any:
            monkeypatch.setattr(owner, verb, real)
            act()
            return real(*args)

        monkeypatch.setattr(owner, verb, first_act)

    return force


class TestGuarded:
    def test_the_old_holder_writes_nothing_and_the_lock_is_free(self, store, video):
        old = Worker(video)
        with heard(signals.lock_forced) as forced:
            result = release_lock(old.lock.name, by=BY, reason="it hangs", fingerprint=shown(video))
        assert result.outcome is Outcome.RELEASED
        assert result.fenced
        assert result.before.holder in forced[0]["info"].holder
        assert row(video) == ("processing", "", 2)
        for write in (lambda: old.claim.update(progress=99), old.claim.finish, old.claim.fail, old.claim.give_back):
            with pytest.raises(StaleClaim):
                write()
        assert row(video) == ("processing", "", 2)
        new = Worker(video)
        assert row(video)[1:] == (new.token, 3)
        with pytest.raises(StaleClaim):
            old.claim.update(progress=99)
        assert not old.lock.release()
        assert new.ends() is Released.RELEASED
        assert row(video) == ("ready", "", 3)

    def test_the_row_is_left_in_the_state_that_was_chosen(self, store, video):
        old = Worker(video)
        with pytest.raises(TaskLockError, match="must be one of"):
            release_lock(old.lock.name, by=BY, row_state="ready")
        assert row(video)[1] == old.token
        assert release_lock(old.lock.name, by=BY, row_state="failed").fenced
        assert row(video) == ("failed", "", 2)

    def test_a_state_that_a_constraint_refuses_is_an_error_that_asks_for_another(self, store):
        one_waits = StateGuard(field="token", claim_from=["waiting"], claim_as="running", failed="failed")

        @model_lock(Track, "track:{pk}", guard=one_waits)
        def work(pk: int) -> None:
            other.save()
            with pytest.raises(TaskLockError, match=r"(?s)refuses to leave .* 'waiting' .* another state"):
                release_lock(f"track:{pk}", by=BY)
            assert release_lock(f"track:{pk}", by=BY, row_state="failed").fenced

        track, other = Track.objects.create(token="waiting"), Track(token="waiting")
        with pytest.raises(StaleClaim):
            work(track.pk)
        track.refresh_from_db()
        assert track.token == "failed"

    def test_it_refuses_to_work_in_an_open_transaction(self, store, video):
        """Or the lock would be free before others can see that the row is."""
        old = Worker(video)
        with transaction.atomic(), pytest.raises(TransactionOpen):
            release_lock(old.lock.name, by=BY)
        assert row(video)[1] == old.token
        assert old.ends() is Released.RELEASED


class TestRaces:
    def test_the_holder_ends_before_the_row_is_fenced(self, store, video, at):
        old = Worker(video)
        at("fence", old.ends)
        result = release_lock(old.lock.name, by=BY, fingerprint=shown(video), row_state="failed")
        assert (result.outcome, result.fenced) == (Outcome.NOT_HELD, False)
        assert row(video) == ("ready", "", 1)

    def test_the_holder_ends_when_its_row_is_fenced(self, store, video, at):
        old = Worker(video)
        refused = []

        def ends() -> None:
            with pytest.raises(StaleClaim):
                old.claim.finish()
            refused.append(old.lock.release())

        at("take away", ends)
        result = release_lock(old.lock.name, by=BY, fingerprint=shown(video), row_state="failed")
        assert refused == [Released.RELEASED]
        assert (result.outcome, result.fenced) == (Outcome.NOT_HELD, True)
        assert row(video) == ("failed", "", 2)

    @pytest.mark.parametrize("step", ["fence", "take away"])
    def test_a_new_holder_before_and_when_the_row_is_fenced(self, store, video, at, step):
        old, new = Worker(video), []

        def change_hands() -> None:
            old.loses()
            new.append(Worker(video))

        at(step, change_hands)
        result = release_lock(old.lock.name, by=BY, fingerprint=shown(video), row_state="uploading")
        fenced = step == "take away"
        assert (result.outcome, result.fenced) == (Outcome.CHANGED_HANDS, fenced)
        assert row(video) == ("processing", new[0].token, 3 if fenced else 2)
        with pytest.raises(StaleClaim):
            old.claim.update(progress=99)
        assert new[0].ends() is Released.RELEASED

    def test_a_new_holder_since_it_was_shown(self, store, video):
        old = Worker(video)
        seen = shown(video)
        old.loses()
        new = Worker(video)
        result = release_lock(new.lock.name, by=BY, fingerprint=seen)
        assert result.outcome is Outcome.CHANGED_HANDS
        assert result.before.fingerprint == shown(video) != seen
        assert row(video)[1] == new.token
        assert new.ends() is Released.RELEASED
        assert acts(new.lock.name) == []

    def test_a_holder_that_has_not_claimed_its_row_yet(self, store, video):
        """The row is nobody's to be fenced; whoever claims it next is judged by it as ever."""
        old = Worker(video, claims=False)
        result = release_lock(old.lock.name, by=BY)
        assert (result.outcome, result.fenced) == (Outcome.RELEASED, False)
        assert row(video) == ("uploading", "", 0)
        old.claim.claim()
        new = Worker(video)
        with pytest.raises(StaleClaim):
            old.claim.finish()
        assert new.ends() is Released.RELEASED


class TestPlain:
    def test_a_lock_without_a_row(self, store):
        lock = Elsewhere("report:1")
        assert lock.acquire()
        with pytest.raises(TaskLockError, match="guards no row"):
            release_lock("report:1", by=BY, row_state="failed")
        result = release_lock("task_lock:report:1", by=BY)
        assert (result.outcome, result.fenced, bool(result)) == (Outcome.RELEASED, False, True)
        assert not lock.release()

    @pytest.mark.parametrize("store", stores("redis"), indirect=True)
    def test_a_value_that_was_put_there_by_hand(self, store, at):
        with raw_redis() as client:
            client.set("task_lock:6", "worker-3")
            at("take away", lambda: client.delete("task_lock:6") and granted(get_backend().acquire(an_ask("6"))))
            assert release_lock("6", by=BY, fingerprint="").outcome is Outcome.CHANGED_HANDS  # between look and act
            assert release_lock("6", by=BY, fingerprint="").outcome is Outcome.CHANGED_HANDS  # since it was shown
            get_backend().remove("6")
            client.set("task_lock:6", "worker-3")
            assert release_lock("6", by=BY, fingerprint="").outcome is Outcome.RELEASED
            assert not client.exists("task_lock:6")


class TestAudit:
    def test_who_did_what_and_why_without_the_token(self, store, video, caplog):
        caplog.set_level("DEBUG")
        user = get_user_model().objects.create(username="oncall")
        old = Worker(video)
        release_lock(old.lock.name, by=Actor("oncall", user.pk), reason="it <hangs>")
        [act] = acts(old.lock.name)
        assert (act.actor, act.action, act.reason) == ("oncall", "release", "it <hangs>")
        assert act.outcome.startswith(
            "released, testapp.Video 1 left 'processing'; held by ".replace("1", str(video.pk))
        )
        assert old.token not in caplog.text + repr(acts()) + repr(list(LogEntry.objects.values()))
        entry = LogEntry.objects.get()
        assert (entry.user, entry.action_flag, entry.object_id) == (user, CHANGE, old.lock.name)
        assert (entry.content_type.model, entry.content_type.app_label) == ("lock", "tasklock")
        assert "it <hangs>" in entry.change_message

    def test_a_trail_that_cannot_be_written_is_in_the_log_and_the_lock_is_released(self, store, monkeypatch, caplog):
        from django.db import OperationalError

        from django_tasklock.operations import audit

        def fails(*args: Any) -> None:
            raise OperationalError("the disk is full")

        monkeypatch.setattr(audit, "store_entries", fails)
        lock = Elsewhere("report:1")
        assert lock.acquire()
        assert release_lock("report:1", by=BY, reason="it hangs").outcome is Outcome.RELEASED
        assert "somebody: release 'report:1'" in caplog.text
        assert "it hangs" in caplog.text
        assert "could not be written" in caplog.text

    @pytest.mark.parametrize("step", ["fence", "take away"])
    def test_one_that_is_broken_off_may_have_been_done_and_is_written_down(self, store, video, at, step):
        old = Worker(video)

        def struck() -> None:
            raise KeyboardInterrupt

        at(step, struck)
        with pytest.raises(KeyboardInterrupt):
            release_lock(old.lock.name, by=BY, reason="it hangs")
        [act] = acts(old.lock.name)
        assert (act.actor, act.reason) == ("somebody", "it hangs")
        assert "broken off (KeyboardInterrupt)" in act.outcome
        assert ("not released yet" in act.outcome) is (step == "take away")
