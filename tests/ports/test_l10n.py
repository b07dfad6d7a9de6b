"""The localisation site, before and after: what both do, and what only the ported one survives."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from types import ModuleType
from typing import Any

import pytest
import redis
from django.test import RequestFactory

from django_tasklock import BackendUnavailable, testing
from tests.ports import l10n_after, l10n_before
from tests.support.guards import elsewhere
from tests.support.once_app import OnceApp

pytest_plugins = ["tests.support.redis_fixtures"]
pytestmark = pytest.mark.django_db(transaction=True)

POST = RequestFactory().post("/commit/")
NOBODY = "redis://127.0.0.1:1/0"


@pytest.fixture(params=[l10n_before, l10n_after], ids=["before", "after"])
def site(request: pytest.FixtureRequest, app: OnceApp, store: redis.Redis) -> Iterator[ModuleType]:
    """Either version, and nobody works there."""
    yield request.param
    for key in [*store.scan_iter("*sync:*"), *store.scan_iter("*report:*"), *store.scan_iter("*repository:*")]:
        store.delete(key)


def published(app: OnceApp, task: Any, *args: Any, **kwargs: Any) -> Any:
    """What a worker makes of it, in a thread of its own."""
    task.delay(*args, **kwargs)
    return elsewhere(app.run)


class TestBoth:
    def test_a_project_is_synced_once_at_a_time(self, site, app, monkeypatch):
        seen = []

        def another(*words: str) -> None:
            if words[1] == "de" and len(seen) == 0:
                seen.append(published(app, site.sync, "de")[1]["status"])
                seen.append(published(app, site.sync, "fr"))

        monkeypatch.setattr(site, "git", another)
        assert published(app, site.sync, "de") == ("SUCCESS", "synced")
        assert seen == ["skipped", ("SUCCESS", "synced")]

    def test_a_report_waits_for_another_of_the_same_day_but_not_for_ever(self, site, app, monkeypatch):
        """Then the first version skips it, and the second one fails, so that it is seen."""
        seen: list[Any] = []

        def another(*words: str) -> None:
            if words[1:] == ("de", "monday") and not seen:
                seen.append(published(app, site.report, project="de", day="monday"))
                seen.append(published(app, site.report, project="de", day="tuesday"))

        monkeypatch.setattr(site, "git", another)
        assert published(app, site.report, project="de", day="monday") == ("SUCCESS", "counted")
        assert [result == ("SUCCESS", "counted") for result in seen] == [False, True]

    def test_a_translator_waits_for_the_repository_but_not_for_ever(self, site, monkeypatch):
        statuses = []

        def another(*words: str) -> None:
            if not statuses:
                statuses.append(elsewhere(partial(site.commit, POST, "de/main")).status_code)

        monkeypatch.setattr(site, "git", another)
        assert site.commit(POST, "de/main").status_code == 200
        assert statuses == [409]
        assert site.commit(POST, "de/main").status_code == 200

    def test_a_report_is_written_while_redis_is_down(self, site, app, configure, monkeypatch):
        configure(LOCATION=NOBODY)
        monkeypatch.setattr(l10n_before, "client", redis.Redis.from_url(NOBODY))
        assert published(app, site.report, project="de", day="mon") == ("SUCCESS", "counted")
        with pytest.raises((redis.ConnectionError, BackendUnavailable)):  # two in one repository would be worse
            site.commit(POST, "de/main")


class TestOnlyTheSecond:
    @pytest.mark.parametrize(
        ("site", "outcome"), [(l10n_before, "FAILURE"), (l10n_after, "SUCCESS")], indirect=["site"]
    )
    def test_a_positional_key_takes_arguments_by_name_too(self, site, app, outcome):
        """``"sync:{0}".format(project="de")`` is an IndexError."""
        assert published(app, site.sync, project="de")[0] == outcome

    def test_it_is_one_lock_however_the_arguments_are_passed(self, app):
        with testing.lock_held(l10n_after.sync.lock.name("de")):
            assert published(app, l10n_after.sync, project="de")[1]["reason"] == "already_processing"

    @pytest.mark.parametrize(
        ("site", "key", "seconds"),
        [(l10n_before, "sync:de", 7200), (l10n_after, "task_lock:sync:de", 60)],
        indirect=["site"],
    )
    def test_how_long_a_killed_workers_lock_stays(self, site, app, store, monkeypatch, key, seconds):
        left = []
        monkeypatch.setattr(site, "git", lambda *words: left.append(store.ttl(key)))
        assert published(app, site.sync, "de")[0] == "SUCCESS"
        assert seconds - 10 < left[0] <= seconds

    @pytest.mark.parametrize(
        ("site", "key", "done"),
        [
            (l10n_before, "repository:de/main", ["fetch", "push"]),
            (l10n_after, "task_lock:repository:de/main", ["fetch"]),
        ],
        indirect=["site"],
    )
    def test_nobody_pushes_who_has_lost_the_repository(self, site, app, store, monkeypatch, key, done):
        words = []

        def fetch_for_too_long(word: str, *rest: str) -> None:
            words.append(word)
            if word == "fetch":
                assert store.exists(key)
                store.delete(key) if site is l10n_before else testing.lose("repository:de/main")

        monkeypatch.setattr(site, "git", fetch_for_too_long)
        published(app, site.sync, "de")
        assert words == done
