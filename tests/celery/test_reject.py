"""``reject``, the default of ``OnceTask``: over, unrun, and everybody who wants to know is told; nobody else."""

from __future__ import annotations

import pytest
from kombu import Queue

from django_tasklock import ConcurrencyLimiter, TaskLockAcquireError
from django_tasklock.celery.delivery import defer as busy
from tests.support.celery_site.courier import Courier
from tests.support.guards import elsewhere, held_by_another

pytest_plugins = ["tests.support.celery_site.fixtures"]
SITE_TASKS = ["tests.support.celery_site.rejecting_tasks", "tests.support.celery_site.once_tasks"]


@pytest.mark.quick
def test_it_ends(celery_site):
    """On every Celery: with a state that is final, one line, and nothing of what belongs to a failure."""
    worker = celery_site.worker(concurrency=2)
    gate = celery_site.gate()
    with held_by_another("hold:a"):
        celery_site.publish("limited", "x", until=gate)
        celery_site.started("x")
        results = [celery_site.publish(task, "a") for task in ("rejecting", "early", "locked", "limited")]
        for result in results:
            assert celery_site.outcome(result)[0] == "REVOKED"
            with pytest.raises(TaskLockAcquireError, match="hold"):
                result.get(timeout=5)
    gate.open()
    celery_site.wait_until(lambda: worker.log().count("succeeded in") == 1)
    celery_site.wait_until(lambda: worker.log().count("ignored\n") == len(results))  # Celery says it after the result
    log = worker.log()
    assert log.count("reject: l") == len(results)  # of the lock, or of the limiter
    for result in results:
        ours, its_end = [line for line in log.splitlines() if result.id in line and "received" not in line]
        assert ": INFO/" in ours
        assert f"[{result.id}]" in ours.partition("asked for by")[2]
        assert ": INFO/" in its_end
        assert its_end.endswith("ignored")
    assert not any(word in log for word in ("Traceback", "WARNING/", "ERROR/"))
    assert celery_site.events("failure") == []
    assert [event.key for event in celery_site.events("start")] == ["x"]


@pytest.mark.broker
def test_the_broker_sees_a_reject(celery_site):
    """For its dead-letter exchange; a broker without one has nothing left of it."""
    name, dead = celery_site.queue(), celery_site.queue("dead")
    to_dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    queues = {name: {"exchange": name, "routing_key": name, "queue_arguments": to_dead}}
    celery_site.configure(task_queues=queues if celery_site.is_amqp else None)
    with celery_site.app.connection_for_write() as connection:
        Queue(dead, channel=connection.channel(), durable=True).declare()
    celery_site.worker(concurrency=2)
    with held_by_another("hold:a"):
        results = [celery_site.publish(task, "a") for task in ("rejecting", "locked")]
        for result in results:
            assert celery_site.outcome(result)[0] == "REVOKED"
    if celery_site.is_amqp:
        celery_site.wait_until(lambda: celery_site.waiting("dead") == len(results))
    assert celery_site.waiting() == 0


def test_with_the_result_store_away(celery_site, caplog, monkeypatch):
    """What is for people does not stand in the way: the message is over all the same."""

    def away(*args: object, **kwargs: object) -> None:
        raise ConnectionError("no result store")

    with held_by_another("hold:a"):
        celery_site.publish("early", "a")
        monkeypatch.setattr(celery_site.app.backend, "store_result", away)
        request = Courier(celery_site).run()
    assert f"[{request.id}]: the state REVOKED was not stored" in caplog.text
    assert celery_site.waiting() == 0


def test_one_without_results_stores_none(celery_site):
    with held_by_another("hold:a"):
        result = celery_site.publish("early", "a", options={"ignore_result": True})
        Courier(celery_site).run()
    assert celery_site.result(result).state == "PENDING"


@pytest.mark.parametrize("word", ["reject", "skip"])
def test_a_retry_that_finds_its_lock_busy_is_put_off(celery_site, monkeypatch, word):
    """Its work has begun: it is not thrown away."""
    monkeypatch.setattr(busy, "backoff", lambda *of: 0.01)
    celery_site.configure(result_expires=None)  # what expires is set by a command that redis-py warns of
    courier = Courier(celery_site)
    with held_by_another("hold:a"):
        result = celery_site.publish("rejecting", "a", once={"on_conflict": word}, options={"retries": 1})
        courier.run()
        assert result.state == "RETRY"
    celery_site.wait_until(lambda: courier.run_all() and result.state == "SUCCESS")
    assert len(celery_site.events("start", "a")) == 1


def test_a_retry_that_finds_no_permit_is_put_off(celery_site, monkeypatch):
    monkeypatch.setattr(busy, "backoff", lambda *of: 0.01)
    celery_site.configure(result_expires=None)
    with ConcurrencyLimiter("hold", 1):
        result = celery_site.publish("limited", "a", options={"retries": 1})
        elsewhere(Courier(celery_site).run)
        assert result.state == "RETRY"
    celery_site.wait_until(lambda: Courier(celery_site).run_all() and result.state == "SUCCESS")
    assert len(celery_site.events("start", "a")) == 1
