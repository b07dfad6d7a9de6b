"""Checks of the leases of Celery's messages, with Redis as the broker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.core import checks

from django_tasklock.checks.settings import valid_settings
from django_tasklock.conf import milliseconds


def check_message_lease(app_configs: Any = None, **kwargs: Any) -> list[checks.CheckMessage]:
    """Report E007: too short to be renewed. W019: longer than needed. W020, W022, I002: the state of the workers."""
    settings = valid_settings()
    if settings is None or settings.MESSAGE_LEASE is None:
        return []
    from django_tasklock.celery.messages.report import lease_lengths

    found = lease_lengths()
    if found is None:
        return []
    wanted = milliseconds(settings.MESSAGE_LEASE, "MESSAGE_LEASE") / 1000
    return [*_check_length(found.lease, found.own, wanted, found.shortest), *_check_workers(found.lease)]


def _check_length(lease: float, own: float | None, wanted: float, shortest: float) -> Iterator[checks.CheckMessage]:
    where = "TASKLOCK['MESSAGE_LEASE']" if own is None else "The visibility_timeout in broker_transport_options"
    if lease < shortest:
        yield checks.Error(
            f"{where} is {lease:g} s, shorter than three renewals: a living worker's messages are delivered again.",
            hint=f"Take {shortest:g} s or more; 60 is right for most.",
            id="tasklock.E007",
        )
    if own is not None and own > wanted:
        yield checks.Warning(
            f"{where} is {own:g} s: for so long a dead worker's messages wait until they start again.",
            hint=f"Remove it: it is TASKLOCK['MESSAGE_LEASE'], {wanted:g} s, then. What a living worker has is renewed,"
            " however long it takes.",
            id="tasklock.W019",
        )


def _check_workers(lease: float) -> Iterator[checks.CheckMessage]:
    from django_tasklock.celery.messages import report

    try:
        marks = report.workers()
        without = report.without_mark(marks)
    except Exception as error:
        yield checks.Info(
            f"The broker cannot be asked which workers renew what they have: {error}",
            hint="Run this on a machine that can reach it.",
            id="tasklock.I002",
        )
        return
    if without:
        yield checks.Warning(
            "These workers do not renew what they have, and others on their broker do: each of their tasks that takes"
            f" longer than {lease:g} s, or waits so long for its countdown, is started a second time:"
            f" {', '.join(without)}.",
            hint="Give them this app and version; until they have it, TASKLOCK['MESSAGE_LEASE'] = 3600 everywhere. See"
            " docs/celery.md.",
            id="tasklock.W020",
        )
    late = [f"{mark.node} ({mark.late:g} s)" for mark in marks if mark.is_current and mark.late]
    if late:
        yield checks.Warning(
            f"Renewals of messages were late within the last hour, by more than half of the lease: {', '.join(late)}.",
            hint="A lease that is over is a message that is delivered twice. Were these processes stopped, starved of"
            " processor time, or without their broker? A longer MESSAGE_LEASE forgives more.",
            id="tasklock.W022",
        )
