"""What checks and health say of the leases of messages."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery, _state
from django.conf import settings as django_settings
from kombu import pools

from django_tasklock import StateGuard, model_lock, task_lock
from django_tasklock.celery import OnceTask
from django_tasklock.celery.broker import message_lease
from django_tasklock.celery.messages import marks
from django_tasklock.celery.messages.index import Index
from django_tasklock.checks import tasks as checks_of_tasks
from django_tasklock.checks.tasks import check_late_acknowledgement, check_message_lease, check_visibility
from django_tasklock.health import messages as health_messages, store as health_store
from django_tasklock.health.store import check_locks
from tests.support.redis_server import RedisServer
from tests.testapp.models import Video


@pytest.fixture
def app(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Celery]:
    """One whose broker is a Redis of this test's own."""
    monkeypatch.setattr(checks_of_tasks, "import_task_modules", tuple)
    before = _state._tls.current_app, _state.default_app
    made = Celery("tests.leases", broker=redis_server.url, set_as_current=True)
    made.set_default()  # for other threads
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Task name .* is already registered")
        made.finalize()
    health_messages.forget()
    yield made
    made.conf.broker_url = redis_server.url
    made.amqp.producer_pool.force_close_all()
    made.pool.force_close_all()
    for group in (pools.producers, pools.connections):  # kombu has one for all who have the same address
        with contextlib.suppress(KeyError):
            del group[made.connection_for_write()]
    _state._set_current_app(before[0])
    _state.set_default_app(before[1])
    made.close()
    health_messages.forget()


def leave(app: Celery, node: str, **more: Any) -> None:
    """A worker's mark."""
    with app.connection_for_read() as connection:
        index = Index(connection, 60, 2)
        marks.write(index, marks.Mark(**{"node": node, "lease": 60, "at": time.time(), **more}))
        index.close()


def lease(settings: Any, seconds: Any) -> None:
    settings.TASKLOCK = {**django_settings.TASKLOCK, "MESSAGE_LEASE": seconds}


def nothing() -> None:
    """A body."""


def ids(found: list[Any]) -> list[str]:
    return [one.id.removeprefix("tasklock.") for one in found]


class TestTheLease:
    @pytest.mark.parametrize(
        ("setting", "options", "seconds"),
        [
            (7.5, {}, 7.5),
            (None, {"visibility_timeout": 5}, None),
            (60, {"visibility_timeout": 43200}, 60),
            (60, {"visibility_timeout": 5}, 5),
            (60, {"ack_emulation": False}, None),
        ],
    )
    def test_is_the_setting_or_the_projects_own_timeout_if_that_is_shorter(
        self, app: Celery, settings: Any, setting: Any, options: dict[str, Any], seconds: float | None
    ) -> None:
        lease(settings, setting)
        app.conf.broker_transport_options = options
        assert message_lease(app) == seconds

    @pytest.mark.parametrize("url", ["amqp://h", "memory://"])
    def test_no_other_broker_has_one(self, app: Celery, settings: Any, url: str) -> None:
        lease(settings, 60)
        app.conf.broker_url = url
        assert message_lease(app) is None
        assert check_message_lease() == []
        assert "messages" not in check_locks()


class TestChecks:
    @pytest.mark.parametrize(("setting", "timeout", "too_short"), [(2, 3600, "2 s"), (60, 1, "1 s"), (60, 43200, None)])
    def test_too_short(self, app: Celery, settings: Any, setting: int, timeout: int, too_short: str | None) -> None:
        lease(settings, setting)
        app.conf.broker_transport_options = {"visibility_timeout": timeout}
        found = check_message_lease()
        assert ids(found) == (["E007"] if too_short else [])
        assert not found or f"The lease of messages is {too_short}" in found[0].msg

    def test_what_is_renewed_is_not_delivered_again(self, app: Celery, settings: Any) -> None:
        app.task(name="late", base=OnceTask, shared=False)(nothing)
        lease(settings, None)
        assert ids(check_visibility()) == ["W018"]
        lease(settings, 60)
        assert check_visibility() == []

    def test_a_task_that_may_outlive_its_lock_is_named(self, app: Celery, settings: Any) -> None:
        """By its own limits or the project's, hard or soft; nothing is given back of one that is acknowledged early."""
        lease(settings, 60)
        app.conf.task_soft_time_limit = 1800

        def task(name: str, timeout: float | None, **options: Any) -> None:
            app.task(name=f"limited.{name}", base=OnceTask, timeout=timeout, shared=False, **options)(nothing)

        task("hard", 600, time_limit=601)
        task("soft", 600, soft_time_limit=601)
        task("project", 600)
        task("short", 600, time_limit=600)
        task("endless", None, time_limit=7200)
        task("early", 600, acks_late=False)
        [warning] = check_visibility()
        assert ids([warning]) == ["W018"]
        assert ": limited.hard, limited.project, limited.soft. " in warning.msg


class TestLateAcknowledgement:
    def test_names_what_is_lost_with_its_process(self, app: Celery) -> None:
        guard = StateGuard(claim_from=["uploading"], claim_as="processing", done="ready", failed="failed")
        both = {"acks_late": True, "reject_on_worker_lost": True}

        def body(pk: int) -> None:
            """Nothing."""

        guarded = model_lock(Video, "early:{pk}", guard=guard)(body)
        app.task(name="early.once", base=OnceTask, acks_late=False, shared=False)(body)
        app.task(name="early.half", base=OnceTask, reject_on_worker_lost=None, shared=False)(body)
        app.task(name="early.guarded", shared=False)(guarded)
        app.task(name="early.locked", shared=False)(task_lock("early")(body))
        app.task(name="early.plain", shared=False)(body)
        app.task(name="early.sound", base=OnceTask, shared=False)(body)
        app.task(name="early.sound_guarded", shared=False, **both)(guarded)
        names = [name for name in checks_of_tasks.acknowledged_early() if name.startswith("early.")]
        assert names == ["early.guarded", "early.half", "early.once"]
        [warning] = check_late_acknowledgement()
        assert warning.id == "tasklock.W021"
        app.conf.update(task_acks_late=True, task_reject_on_worker_lost=True)


class TestHealth:
    @pytest.fixture(autouse=True)
    def _address(self, settings: Any) -> None:
        settings.ROOT_URLCONF = "tests.doors.test_health"

    def test_counts_the_workers(self, app: Celery, settings: Any, client: Any) -> None:
        lease(settings, 60)
        leave(app, "w1@host", messages=3)
        leave(app, "w2@host", messages=4, stuck=3)
        leave(app, "dead@host", messages=4, stuck=5, at=time.time() - 70)
        response = client.get("/health/locks")
        said = response.json()
        assert response.status_code == 200
        assert said["messages"] == {
            "reachable": True,
            "lease": 60.0,
            "workers": 2,
            "messages": 7,
            "stuck": 3,
        }
        assert said["warnings"] == [
            "3 messages do not go on: their workers' slots hang, or their tasks outlive their locks",
        ]
        assert "host" not in response.content.decode()

    def test_a_broker_that_is_down_is_a_warning(
        self, app: Celery, settings: Any, client: Any, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(health_store, "TIMEOUT", 0.3)
        lease(settings, 60)
        redis_server.kill()
        response = client.get("/health/locks")
        assert response.status_code == 200
        assert response.json()["messages"] == {"reachable": False, "lease": 60.0}
