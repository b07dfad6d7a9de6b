"""A next try has the lock of its own arguments; ``autoretry_for`` takes a busy lock as it takes what the body raises.

In ``map()`` and ``chunks()`` a busy element costs the others nothing.
"""

from __future__ import annotations

from typing import Any

import pytest
from celery.exceptions import Ignore

from django_tasklock import TaskLock, TaskLockAcquireError, current_lock, task_lock
from django_tasklock.backends import get_backend
from tests.support.guards import elsewhere

pytest_plugins = ["tests.support.once_fixtures"]


def name_here() -> str:
    lock = current_lock()
    return lock.name


def again(self: Any, x: Any, y: Any = None) -> str:
    """Tries once more, with ``y``."""
    if not self.request.retries:
        raise self.retry(args=(y,), kwargs={}, countdown=0)
    return name_here()


class TestOtherArguments:
    """Of ``retry(args=...)``: another lock, and nothing of the one before."""

    @pytest.mark.parametrize("options", [{"key": "v:{x}"}, {}])
    def test_another_lock(self, app, options):
        task = app.task(lambda self, x, y=None: again(self, x, y), bind=True, **options)
        task.delay(1, 2)
        assert app.run()[0] == "RETRY"
        message = app.take()
        assert app.run(message) == ("SUCCESS", task.lock_name(2))
        assert message.key == task.lock_name(2)

    @pytest.mark.parametrize("kept", [False, True])
    def test_what_was_kept_is_free(self, app, kept):
        task = app.task(
            lambda self, x, y=None: again(self, x, y),
            bind=True,
            key="v:{x}",
            unique="until_finish",
        )
        task.delay(1, 1 if kept else 2)
        app.run()
        names = {record.name for record in get_backend().records()}
        assert names == ({f"unique:{task.name}:v:1"} if kept else set())
        message = app.take()
        assert ("unique" in message.ours) == kept
        assert app.run(message) == ("SUCCESS", f"v:{1 if kept else 2}")
        assert get_backend().records() == []

    @pytest.mark.django_db(transaction=True)
    def test_its_place_in_the_line_was_that_of_another_lock(self, app):
        task = app.task(lambda self, x, y=None: again(self, x, y), bind=True, key="v:{x}", on_conflict="queue")
        task.delay(1, 2)
        app.run()
        message = app.take()
        assert "number" not in message.ours
        assert app.run(message) == ("SUCCESS", "v:2")

    @pytest.mark.parametrize("way", ["once", "keyword by name"])
    def test_a_key_that_the_caller_has_chosen_stays(self, app, way):
        task = app.task(lambda self, x, y=None: again(self, x, y), bind=True, key="v:{x}")
        if way == "once":
            task.once(key="mine").delay(1, 2)
        else:
            app.app.send_task(task.name, (1, 2), {"celery_once_key": "mine"})
        app.run()
        assert app.run() == ("SUCCESS", "mine")


class TestAutoretry:
    """``autoretry_for`` takes what is raised before the body as it takes what the body raises."""

    def test_for_a_busy_lock(self, app):
        task = app.task(
            lambda self: self.request.retries, bind=True, key="a", on_conflict="raise",
            autoretry_for=(TaskLockAcquireError,), retry_kwargs={"max_retries": 2, "countdown": 0},
        )  # fmt: skip
        task.delay()
        with TaskLock("a"):
            assert [elsewhere(app.run)[0] for _ in range(2)] == ["RETRY", "RETRY"]
            last = app.take()
            state, error = elsewhere(lambda: app.run(last))
            assert (state, type(error)) == ("FAILURE", TaskLockAcquireError)
        assert app.run(last) == ("SUCCESS", 2)

    @pytest.mark.parametrize("way", ["spared", "not named", "reject"])
    def test_only_as_it_says(self, app, way):
        more: dict[str, Any] = {
            "spared": {"autoretry_for": (Exception,), "dont_autoretry_for": (TaskLockAcquireError,)},
            "not named": {"autoretry_for": (ValueError,)},
            "reject": {"autoretry_for": (Exception,)},
        }[way]
        task = app.task(key="a", on_conflict="reject" if way == "reject" else "raise", **more)
        task.delay()
        with TaskLock("a"):
            state, error = elsewhere(app.run)
        assert (state, isinstance(error, Ignore)) == (("IGNORED", True) if way == "reject" else ("FAILURE", False))
        assert app.take() is None

    def test_a_direct_call_raises(self, app):
        task = app.task(key="a", on_conflict="raise", autoretry_for=(Exception,))
        with TaskLock("a"), pytest.raises(TaskLockAcquireError):
            elsewhere(task)


class TestElements:
    """Of ``map``, ``starmap`` and ``chunks``: one that is busy costs the others nothing."""

    @pytest.mark.parametrize(
        ("way", "word"), [("map", "reject"), ("map", "queue"), ("starmap", "retry"), ("chunks", "skip")]
    )
    def test_busy_ones_are_skipped(self, app, word, way):
        task = app.task(lambda x: x, key="v:{x}", on_conflict=word)
        items = [1, 2, 3] if way == "map" else [(1,), (2,), (3,)]
        call = task.chunks(items, 3).group() if way == "chunks" else getattr(task, way)(items)
        call.apply_async()
        with TaskLock("v:2"):
            state, values = elsewhere(app.run)
        assert state == "SUCCESS"
        assert (values[0], values[2], values[1]["reason"]) == (1, 3, "already_processing")

    def test_of_a_decorated_task(self, app):
        task = app.task(task_lock("v:{x}", on_conflict="retry")(lambda x: x), base=app.app.Task)
        task.map([1, 2, 3]).apply_async()
        with TaskLock("v:2"):
            state, values = elsewhere(app.run)
        assert (state, values[0], values[2], values[1]["reason"]) == ("SUCCESS", 1, 3, "already_processing")

    def test_with_raise_a_busy_element_is_a_failure(self, app):
        task = app.task(lambda x: x, key="v:{x}", on_conflict="raise")
        task.map([1, 2, 3]).apply_async()
        with TaskLock("v:2"):
            state, error = elsewhere(app.run)
        assert (state, type(error)) == ("FAILURE", TaskLockAcquireError)

    def test_what_an_element_calls_is_none(self, app):
        inner = app.task(lambda x: x, key="v:{x}")
        outer = app.task(lambda x: inner(x), key="outer:{x}")
        outer.map([1]).apply_async()
        with TaskLock("v:1"):
            state, error = elsewhere(app.run)
        assert (state, type(error)) == ("FAILURE", TaskLockAcquireError)


def test_a_plain_task_that_calls_a_busy_one(app):
    """It ended itself as rejected, silently."""
    task = app.task(lambda: None, key="a")
    plain = app.task(lambda: task(), base=app.app.Task)
    plain.delay()
    with TaskLock("a"):
        state, error = elsewhere(app.run)
    assert (state, type(error)) == ("FAILURE", TaskLockAcquireError)
