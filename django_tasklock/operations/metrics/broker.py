"""The messages in Celery's broker, for Prometheus."""

from __future__ import annotations

import logging

logger = logging.getLogger("django_tasklock")


def count_messages() -> dict[str, int] | None:
    """Return the number of messages of each queue: waiting, parked, and fetched but not acknowledged.

    ``None``: the broker is not Redis or does not answer, or the database does not, which is logged. Takes a few seconds
    at most.
    """
    from django_tasklock.celery.messages import report

    try:
        return report.messages_by_queue()
    except Exception as error:
        logger.info("metrics: the messages could not be counted: %r", error)
        return None


def count_stuck() -> int | None:
    """Return the number of messages that workers have given back, as their slots do not go on.

    ``None``: messages have no leases, or the broker does not answer, which is logged. Takes a few seconds at most.
    """
    from django_tasklock.celery.messages import report

    try:
        return None if report.lease_lengths() is None else sum(one.stuck for one in report.workers() if one.is_current)
    except Exception as error:
        logger.info("metrics: the broker could not be asked: %r", error)
        return None
