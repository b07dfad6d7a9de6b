"""Operators' actions on parked messages: publish one now, requeue a dead one, or discard one."""

from __future__ import annotations

from django_tasklock.operations.audit import Attempt
from django_tasklock.operations.values import Actor


def requeue_parked(task_id: str, *, by: Actor, reason: str = "", sign: bool = False) -> str:
    """Requeue a dead message, so that it waits for its lock again. Return "", or the reason why it was not requeued.

    ``sign``: the operator confirms that a worker of an older version, which did not sign messages, has parked it.
    Raises ``BackendUnavailable``.
    """
    from django_tasklock.celery.parking.manual import requeue

    attempt = Attempt(by, "requeue", "", reason, object_id=task_id)
    with attempt, attempt:
        attempt.name, obstacle = requeue(task_id, sign_it=sign)
        attempt.outcome = "" if obstacle else f"{task_id} waits for its lock again"
    return obstacle


def publish_parked(task_id: str, *, by: Actor, reason: str = "") -> str:
    """Publish a parked message now if its lock is free and it is next. Return "", or the reason why it was not.

    Workers do the same every few seconds; unlike them, this does not wait for an earlier message that was published and
    lost. Raises ``BackendUnavailable``.
    """
    from django_tasklock.celery.parking.manual import publish

    attempt = Attempt(by, "publish", "", reason, object_id=task_id)
    with attempt, attempt:
        attempt.name, obstacle = publish(task_id)
        attempt.outcome = "" if obstacle else f"{task_id} is published"
    return obstacle


def discard_parked(task_id: str, *, by: Actor, reason: str = "") -> str:
    """Discard a parked or dead message: it ends as ``REVOKED`` without running. Return "", or why it was not discarded.

    Raises ``BackendUnavailable``.
    """
    from django_tasklock.celery.parking.manual import discard

    attempt = Attempt(by, "discard", "", reason, object_id=task_id)
    with attempt, attempt:
        attempt.name, obstacle = discard(task_id, f"{by.name}: {reason}" if reason else by.name)
        attempt.outcome = "" if obstacle else f"{task_id} is discarded"
    return obstacle
