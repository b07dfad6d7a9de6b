"""The links of a call that did no work are not called. What others wait for goes on: the rest of a chain, a chord."""

from __future__ import annotations

import itertools

import pytest
from celery import chain, chord, group

from django_tasklock import ConcurrencyLimiter, StateGuard, concurrency_limited, model_lock, task_lock, testing
from django_tasklock.celery.queue.promoter import promote
from tests.testapp.models import Video

pytest_plugins = ["tests.support.once_fixtures"]

GUARD = StateGuard(claim_from=["uploading"], claim_as="processing", done="ready", failed="failed")
KINDS = {
    "once": None,
    "task_lock": task_lock("linked"),
    "concurrency_limited": concurrency_limited("linked", 1, on_conflict="skip"),
}
_names = (f"links.task-{number}" for number in itertools.count())


@pytest.fixture(params=KINDS)
def task(request, app):
    """A task of which every call is skipped."""

    def body(*args):
        return "ran"

    if request.param == "once":
        made = app.task(body, name=next(_names), key="linked", on_conflict="skip")
    else:
        made = app.task(KINDS[request.param](body), name=next(_names), base=app.app.Task)
    limited = request.param == "concurrency_limited"
    with testing.limit_reached(ConcurrencyLimiter("linked", 1)) if limited else testing.lock_held("linked"):
        yield made


@pytest.fixture
def other(app):
    """A task that knows nothing of locks."""
    return app.task(lambda *args: "other", name=next(_names), base=app.app.Task)


def run_first(app):
    """Run the next message, which is skipped; return the names of the tasks that it calls."""
    state, result = app.run()
    assert (state, result["status"]) == ("SUCCESS", "skipped")
    return [message.task for message in app.all()]


def test_a_skipped_call_calls_no_links(app, task, other):
    for links in ([other.s()], [other.s(), other.si()], [chain(other.s(), other.s())], [group(other.s(), other.s())]):
        task.apply_async(link=links, link_error=other.s())
        assert run_first(app) == []
    assert task.apply(link=[other.s()]).result["status"] == "skipped"
    assert app.all() == []


def test_a_call_that_works_calls_its_links(app, other):
    task = app.task(task_lock("linked")(lambda: "ran"), name=next(_names), base=app.app.Task)
    task.apply_async(link=other.s())
    assert app.run() == ("SUCCESS", "ran")
    assert [message.args for message in app.all()] == [["ran"]]
    task.apply(link=[other.s()])
    assert [message.args for message in app.all()] == [["ran"]]


def test_a_call_whose_row_is_in_another_state_calls_no_links(app, other, transactional_db):
    video = Video.objects.create(status="ready")
    once = app.task(lambda pk: "ran", name=next(_names), model=Video, guard=GUARD)
    decorated = app.task(model_lock(Video, guard=GUARD)(lambda pk: "ran"), name=next(_names), base=app.app.Task)
    for task in (once, decorated):
        task.apply_async((video.pk,), link=other.s())
        assert run_first(app) == []
        assert task.apply((video.pk,), link=[other.s()]).result["reason"] == "invalid_state"
        assert app.all() == []


def test_a_call_that_a_newer_one_replaces_calls_no_links(app, other, transactional_db):
    task = app.task(name=next(_names), key="linked", on_conflict="coalesce")
    with testing.lock_held("linked"):
        older, newer = task.apply_async(link=other.s()), task.apply_async(link=other.s())
        for message in app.all():
            assert app.run(message)[0] == "IGNORED"  # parked
    assert older.get(timeout=5)["reason"] == "coalesced"
    assert app.all() == []
    assert promote("linked", app.app)
    assert app.run()[0] == "SUCCESS"
    assert newer.get(timeout=5) == "ran"
    assert [message.task for message in app.all()] == [other.name]


@pytest.mark.parametrize("protocol", [1, 2])
def test_a_canvas_goes_on(app, task, other, protocol):
    app.app.conf.task_protocol = protocol
    chain(task.s(), other.s(), other.s()).apply_async()
    assert run_first(app) == [other.name]
    group(task.s().set(link=other.s()), other.s()).apply_async()
    assert other.name in run_first(app)
    chord([chain(task.s(), other.s())], other.s()).apply_async()
    assert run_first(app) == [other.name]
