"""The video CMS, before and after: what both do, and what only the ported one survives."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from types import ModuleType
from typing import Any

import pytest
from celery.exceptions import WorkerTerminate
from django.core.cache import cache
from django.db import connection
from django.test import RequestFactory
from django.utils.timezone import now

from django_tasklock import StaleClaim, operations, testing
from tests.ports import cms_after, cms_before
from tests.support.guards import elsewhere
from tests.support.once_app import OnceApp

pytest_plugins = ["tests.support.redis_fixtures"]
pytestmark = pytest.mark.django_db(transaction=True)

POST = RequestFactory().post("/media/")


@pytest.fixture(params=[cms_before, cms_after], ids=["before", "after"])
def cms(request: pytest.FixtureRequest, app: OnceApp) -> ModuleType:
    """Either version."""
    return request.param  # type: ignore[no-any-return]


def upload(cms: ModuleType) -> str:
    """The token of a file that was uploaded."""
    return str(json.loads(cms.upload(POST).content)["id"])


def told(cms: ModuleType, token: str) -> Any:
    """What the API says."""
    return json.loads(cms.status(POST, token).content)


class TestBoth:
    def test_a_file_is_encoded_once_and_known_by_its_token(self, cms, app, monkeypatch):
        token = upload(cms)
        running = []
        monkeypatch.setattr(cms, "transcode", lambda token: running.append(told(cms, token)["running"]) or [50, 100])
        assert told(cms, token) == {"id": token, "status": "queued", "progress": 0, "running": False}
        assert app.run() == ("SUCCESS", {"status": "success"})
        assert told(cms, token) == {"id": token, "status": "ready", "progress": 100, "running": False}
        assert running == [True]
        cms.again(POST, token)
        assert app.run()[1]["reason"] == "invalid_state"

    def test_a_second_click_publishes_nothing_until_the_first_has_begun(self, cms, app):
        token = upload(cms)
        cms.again(POST, token)
        [message] = app.all()
        app.run(message)
        cms.again(POST, token)
        assert len(app.all()) == 1

    def test_a_message_beside_the_one_that_runs_is_skipped(self, cms, app, monkeypatch):
        beside = []

        def click(token: str) -> list[int]:
            cms.again(POST, token)
            beside.append(elsewhere(app.run)[1]["reason"])
            return [100]

        upload(cms)
        monkeypatch.setattr(cms, "transcode", click)
        assert app.run()[0] == "SUCCESS"
        assert beside == ["already_processing"]

    def test_a_bad_file_fails_after_three_retries(self, cms, app, monkeypatch):
        def fail(token: str) -> Iterator[int]:
            yield 10
            raise cms.BadFile("no moov atom")

        token = upload(cms)
        monkeypatch.setattr(cms, "transcode", fail)
        for _ in range(3):
            assert app.run()[0] == "RETRY"
            assert told(cms, token)["status"] == "queued"
        assert app.run()[0] == "FAILURE"
        assert told(cms, token)["status"] == "failed"
        assert app.take() is None


class TestOnlyTheSecond:
    @pytest.mark.parametrize(("cms", "left"), [(cms_before, 1), (cms_after, 0)], indirect=["cms"])
    def test_a_rollback_leaves_no_message(self, cms, app, monkeypatch, left):
        """The first one's worker looks for the row three times, and then the task fails."""

        def refuse(media: Any) -> None:
            raise PermissionError("the quota is used up")

        monkeypatch.setattr(cms, "book_quota", refuse)
        with pytest.raises(PermissionError):
            cms.upload(POST)
        assert len(app.all()) == left

    @pytest.mark.parametrize(("cms", "bodies"), [(cms_before, 2), (cms_after, 1)], indirect=["cms"])
    def test_a_long_silence_is_not_taken_for_death(self, cms, app, monkeypatch, bodies):
        """Nothing was written for three hours, and the worker lives. The first one frees its row and its lock."""
        begun = []

        def be_silent(token: str) -> list[int]:
            begun.append(token)
            if len(begun) == 1:
                cms.Media.objects.filter(token=token).update(updated_at=now() - timedelta(hours=4))
                tidy_up(cms)
                for message in app.all():
                    elsewhere(partial(app.run, message))
            return [100]

        upload(cms)
        monkeypatch.setattr(cms, "transcode", be_silent)
        assert app.run()[0] == "SUCCESS"
        assert len(begun) == bodies

    @pytest.mark.parametrize(("cms", "again"), [(cms_before, 0), (cms_after, 1)], indirect=["cms"])
    def test_a_killed_workers_row_is_found_at_once_when_its_lease_is_over(self, cms, app, monkeypatch, store, again):
        """The first one waits for three hours from its last write."""
        token = upload(cms)

        def die(token: str) -> list[int]:
            if cms is cms_after:
                testing.kill_holder(f"encode:{token}")
            raise WorkerTerminate

        monkeypatch.setattr(cms, "transcode", die)
        with pytest.raises(WorkerTerminate):
            app.run()
        store.delete(f"task_lock:encode:{token}")  # its lease is over
        assert told(cms, token)["status"] == "encoding"
        tidy_up(cms)
        assert len(app.all()) == again

    def test_processes_that_do_not_know_the_new_columns_go_on_uploading(self, app):
        """During the deploy, after the migration: they name the columns that they know."""
        with connection.cursor() as cursor:
            cursor.execute(
                "INSERT INTO ports_media (token, status, progress, updated_at) VALUES ('old', 'queued', 0, %s)", [now()]
            )
        cms_after.again(POST, "old")
        assert app.run() == ("SUCCESS", {"status": "success"})

    def test_who_was_overtaken_writes_nothing_any_more(self, app, monkeypatch):
        def wake_up(token: str) -> list[int]:
            testing.overtake()
            return [100]

        monkeypatch.setattr(cms_after, "transcode", wake_up)
        token = upload(cms_after)
        state, error = app.run()
        assert (state, type(error)) == ("FAILURE", StaleClaim)
        assert told(cms_after, token)["progress"] == 0

    def test_a_token_is_compared_and_the_lock_deleted_in_one_step(self, app, monkeypatch):
        """Between the two the first one's lock may end, and the next worker's is deleted."""
        token = upload(cms_before)
        mine = cms_before.acquire(token)
        assert mine is not None
        get = cache.get

        def slowly(key: str) -> Any:
            found = get(key)
            cache.delete(key)  # its two hours are over
            assert cms_before.acquire(token)  # the next worker's
            return found

        monkeypatch.setattr(cache, "get", slowly)
        cms_before.release(token, mine)
        monkeypatch.undo()
        assert not told(cms_before, token)["running"]

    def test_the_next_holders_lock_stays(self, app, monkeypatch):
        token, held = upload(cms_after), []

        def be_late(token: str) -> list[int]:
            testing.lose(f"encode:{token}")
            held.append(testing.lock_held(f"encode:{token}"))
            return [100]

        monkeypatch.setattr(cms_after, "transcode", be_late)
        app.run()
        assert told(cms_after, token)["running"]
        held[0].release()

    def test_redis_is_down(self, app, configure):
        """A click and a run go on without locks; the row lets one of two writers through."""
        configure(LOCATION="redis://127.0.0.1:1/0", ON_UNAVAILABLE="run")
        token = upload(cms_after)
        assert app.run() == ("SUCCESS", {"status": "success"})
        assert cms_after.Media.objects.get(token=token).status == "ready"

    def test_redis_is_down_before(self, app, monkeypatch):
        def refuse(*args: Any) -> bool:
            raise ConnectionError

        monkeypatch.setattr(cache, "add", refuse)
        with pytest.raises(ConnectionError):
            upload(cms_before)
        assert not cms_before.Media.objects.exists()


def tidy_up(cms: ModuleType) -> None:
    """What runs every few minutes."""
    if cms is cms_before:
        cms_before.free_stale()
        return
    operations.sweep(requeue=True, models=[cms_after.Media], pause=0)
