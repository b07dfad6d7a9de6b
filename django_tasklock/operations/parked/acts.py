"""What operators do to parked messages: one is published now, a dead one waits again, or one is discarded."""

from __future__ import annotations

from django_tasklock.operations.audit import Attempt
from django_tasklock.operations.values import Actor


def requeue_parked(task_id: str, *, by: Actor, reason: str = "", sign: bool = False) -> str:
    """Let a dead message wait for its lock again; empty if it does, otherwise why not.

    ``sign``: you know that a worker of an older version has parked it, which did not sign. Raises
    ``BackendUnavailable``.
    """
    from django_tasklock.celery.parking.manual import requeue

    attempt = Attempt(by, "requeue", "", reason, of=task_id)
    with attempt, attempt:
        attempt.name, obstacle = requeue(task_id, sign_it=sign)
        attempt.outcome = "" if obstacle else f"{task_id} waits for its lock again"
    return obstacle


def publish_parked(task_id: str, *, by: Actor, reason: str = "") -> str:
    """Publish a parked message now, if its lock is free and it is its turn; empty if it was, otherwise why not.

    Workers do the same every few seconds; a message that was published before it and is lost is not waited for here.
    Raises ``BackendUnavailable``.
    """
    from django_tasklock.celery.parking.manual import publish

    attempt = Attempt(by, "publish", "", reason, of=task_id)
    with attempt, attempt:
        attempt.name, obstacle = publish(task_id)
        attempt.outcome = "" if obstacle else f"{task_id} is published"
    return obstacle


def discard_parked(task_id: str, *, by: Actor, reason: str = "") -> str:
    """End a message that is parked or dead without having run, as ``REVOKED``; empty if it is gone, otherwise why not.

    Raises ``BackendUnavailable``.
    """
    from django_tasklock.celery.parking.manual import discard

    attempt = Attempt(by, "discard", "", reason, of=task_id)
    with attempt, attempt:
        attempt.name, obstacle = discard(task_id, f"{by.name}: {reason}" if reason else by.name)
        attempt.outcome = "" if obstacle else f"{task_id} is discarded"
    return obstacle
