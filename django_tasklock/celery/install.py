"""Teaching the core about Celery, once, when Django starts."""

from __future__ import annotations

import time
from typing import Any

from celery import current_app, signals
from celery._state import get_current_task, get_current_worker_task
from celery.app.task import Task

from django_tasklock import holders, limited, running
from django_tasklock.celery import ended, endings, tickets
from django_tasklock.celery.busy import draw
from django_tasklock.celery.delivered import Delivered, DeliveredInside
from django_tasklock.celery.judge import LockAttribute, task_here, will_retry
from django_tasklock.celery.message import HEADER, RECEIVED
from django_tasklock.celery.once import OnceTask
from django_tasklock.celery.permitted import kind_of
from django_tasklock.celery.promotion import Promoter
from django_tasklock.celery.spreading import spread_now
from django_tasklock.celery.tickets import RATE
from django_tasklock.celery.turns import take_turn
from django_tasklock.conf import get_settings
from django_tasklock.exceptions import CrashLoop, StaleClaim
from django_tasklock.permitted import Limited
from django_tasklock.running import Running
from django_tasklock.types import monotonic

__all__ = ["install"]

_promoters: list[Promoter] = []


def install() -> None:
    """Called by the app's ``ready()``."""
    holders.describe_task(task_here)
    running.retries(will_retry)
    running.hosted(kind_for)
    limited.hosted(take_turn)
    if "lock" not in vars(Task):
        Task.lock = LockAttribute()  # type: ignore[attr-defined]
    if not hasattr(Task, "dont_autoretry_for"):  # a task's own option replaces it
        Task.dont_autoretry_for = (StaleClaim, CrashLoop)  # type: ignore[attr-defined]  # no retry mends it
    signals.before_task_publish.connect(stamp, weak=False, dispatch_uid="tasklock.stamp")
    signals.task_received.connect(note_arrival, weak=False, dispatch_uid="tasklock.received")
    signals.task_postrun.connect(ended.on_postrun, weak=False, dispatch_uid="tasklock.postrun")
    signals.task_received.connect(endings.on_received, weak=False, dispatch_uid="tasklock.ending")
    signals.task_failure.connect(endings.on_failure, weak=False, dispatch_uid="tasklock.failure")
    signals.task_postrun.connect(tickets.on_postrun, weak=False, dispatch_uid="tasklock.unused")
    signals.task_revoked.connect(endings.on_revoked, weak=False, dispatch_uid="tasklock.revoked")
    signals.worker_ready.connect(begin_promoting, weak=False, dispatch_uid="tasklock.ready")
    signals.worker_shutting_down.connect(end_promoting, weak=False, dispatch_uid="tasklock.end")


def kind_for(locked: object) -> type[Running] | None:
    """How to run a locked function here: as the body of the task that a worker runs, inside of it, or neither."""
    if isinstance(locked, Limited):
        return kind_of(locked)
    task: Any = get_current_worker_task()
    if task is None or not task.request.id or task.request.is_eager:
        return None
    own = getattr(task.run, "lock", None) is locked and get_current_task() is task
    return Delivered if own else DeliveredInside


def stamp(sender: Any = None, headers: Any = None, body: Any = None, **details: Any) -> None:
    """Note in a message of ours when it is published; for a decorated task that lines up, draw its place as well."""
    task = current_app.tasks.get(sender)
    locked = None if task is None else getattr(task.run, "lock", None)
    place = spread_now()
    if not isinstance(headers, dict) or (locked is None and place is None and HEADER not in headers):
        return
    ours = headers[HEADER] = dict(headers.get(HEADER) or {})
    if place is not None:
        ours[RATE] = place
    retries = headers.get("retries") or 0
    if (ours.get("at") or (0, -1))[1] != retries:
        ours["at"] = (time.time(), retries)
    word = None if locked is None else locked.on_conflict or get_settings().ON_CONFLICT
    if word in ("queue", "coalesce") and "ticket" not in ours:
        args, kwargs = (body or ((), {}))[:2]
        stands = word == "queue" and not headers.get("eta")  # what is not due yet does not keep the others waiting
        name = endings.lock_name(task, ours, args, kwargs) if stands else None
        ours["ticket"] = draw(name, headers["id"]) if name else draw()


def note_arrival(sender: Any = None, request: Any = None, **details: Any) -> None:
    """Note when a worker was given a message: what lies there for too long may be delivered to another one too."""
    if request is not None:
        request.request_dict[RECEIVED] = monotonic()


def may_park(task: Any) -> bool:
    """Whether messages of this task may be kept in the database: of every one that takes a lock."""
    return isinstance(task, OnceTask) or getattr(task.run, "lock", None) is not None


def begin_promoting(sender: Any = None, **details: Any) -> None:
    """A worker is ready: it looks after what is parked."""
    app = sender.app if sender is not None else current_app
    if not any(map(may_park, app.tasks.values())):
        return  # nothing for it to look at, so it does not ask the database
    promoter = Promoter(app)
    _promoters.append(promoter)
    promoter.start()


def end_promoting(**details: Any) -> None:
    """A worker shuts down."""
    while _promoters:
        _promoters.pop().stop()
