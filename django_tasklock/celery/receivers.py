"""The connection between Celery and the core: signal receivers, and the ``Host`` of a Celery process."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from importlib.util import find_spec
from typing import Any

from celery import current_app, signals
from celery._state import get_current_worker_task
from celery.app.task import Task

from django_tasklock import counts, host
from django_tasklock.celery import rates, unique
from django_tasklock.celery.definition import check_decorated, lock_of
from django_tasklock.celery.delivery import callers, cleanup, duplicates
from django_tasklock.celery.host import LockAttribute, current_task, record_replacement, record_retry, will_retry
from django_tasklock.celery.message import RECEIVED, hide_header, predecessor_request
from django_tasklock.celery.options import refuse_without_base
from django_tasklock.celery.publish import write_header
from django_tasklock.celery.queue.promoter import Promoter, on_refused
from django_tasklock.celery.task import OnceTask
from django_tasklock.exceptions import BodyExited, CrashLoop, StaleClaim
from django_tasklock.locks.heartbeat import heartbeat
from django_tasklock.names import present_tenant
from django_tasklock.types import monotonic

DEFAULT_REQUEST = "celery.worker.request:Request"
"""Celery's default request class in a worker's main process."""
_promoters: list[Promoter] = []


def install() -> None:
    """Install the ``Host`` in the core, and the signal receivers and task attributes in Celery. Called once."""
    host.install(CeleryHost())
    if Task.Request == DEFAULT_REQUEST:
        Task.Request = "django_tasklock.celery.request:Request"
    # Celery's own does nothing.
    Task.on_bound = classmethod(check_task)  # type: ignore[method-assign,assignment]
    Task.on_replace = record_replacement(Task.on_replace)  # type: ignore[method-assign]
    Task.retry = record_retry(Task.retry)  # type: ignore[method-assign]
    Task.apply_async = refuse_unknown_tenant(Task.apply_async)  # type: ignore[method-assign]
    if "lock" not in vars(Task):
        Task.lock = LockAttribute()  # type: ignore[attr-defined]
    if not hasattr(Task, "dont_autoretry_for"):  # a task's own option overrides it
        Task.dont_autoretry_for = (StaleClaim, CrashLoop, BodyExited)  # type: ignore[attr-defined]  # a retry cannot help
    signals.before_task_publish.connect(write_header, weak=False, dispatch_uid="tasklock.stamp")
    signals.before_task_publish.connect(callers.give_back_rows, weak=False, dispatch_uid="tasklock.rows")
    signals.task_prerun.connect(hide_header, weak=False, dispatch_uid="tasklock.hide")
    signals.task_received.connect(record_arrival, weak=False, dispatch_uid="tasklock.received")
    signals.task_postrun.connect(duplicates.on_postrun, weak=False, dispatch_uid="tasklock.done")
    signals.task_postrun.connect(unique.on_postrun, weak=False, dispatch_uid="tasklock.unique")
    signals.task_received.connect(cleanup.on_received, weak=False, dispatch_uid="tasklock.ending")
    signals.task_failure.connect(cleanup.on_failure, weak=False, dispatch_uid="tasklock.failure")
    signals.task_postrun.connect(rates.on_postrun, weak=False, dispatch_uid="tasklock.unused")
    signals.task_revoked.connect(cleanup.on_revoked, weak=False, dispatch_uid="tasklock.revoked")
    signals.task_unknown.connect(on_refused, weak=False, dispatch_uid="tasklock.unknown")
    signals.task_rejected.connect(on_refused, weak=False, dispatch_uid="tasklock.refused")
    signals.worker_init.connect(start_renewing, weak=False, dispatch_uid="tasklock.messages")
    signals.worker_ready.connect(start_promoting, weak=False, dispatch_uid="tasklock.ready")
    signals.worker_shutting_down.connect(stop_promoting, weak=False, dispatch_uid="tasklock.end")
    signals.worker_process_shutdown.connect(end_child, weak=False, dispatch_uid="tasklock.child")
    if find_spec("opentelemetry") is not None:
        from django_tasklock.celery import tracing

        tracing.install()


class CeleryHost(host.Host):
    """The host of a Celery process: it knows the current task, and runs decorated functions as a part of it."""

    runs_task: Any = staticmethod(get_current_worker_task)
    take_turn: Any = staticmethod(callers.take_turn)
    current_task: Any = staticmethod(current_task)
    will_retry: Any = staticmethod(will_retry)
    join: Any = staticmethod(callers.join)
    tenant_of: Any = staticmethod(callers.tenant_of)


def check_task(kind: type[Any], app: Any = None) -> None:
    """Raise ``TaskLockError`` for a task class that cannot work with this package, when Celery binds it to its app."""
    refuse_without_base(kind)
    check_decorated(kind)


def refuse_unknown_tenant(apply_async: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``Task.apply_async`` to raise what ``write_header`` cannot: Celery logs the exceptions of its receivers."""

    @wraps(apply_async)
    def wrapper(
        task: Any, args: Any = None, kwargs: Any = None, task_id: Any = None, *more: Any, **sending: Any
    ) -> Any:
        if lock_of(task) is not None and predecessor_request(task.name, task_id) is None:
            present_tenant()
        return apply_async(task, args, kwargs, task_id, *more, **sending)

    return wrapper


def record_arrival(sender: Any = None, request: Any = None, **details: Any) -> None:
    """Record when the worker received a message: if it is buffered too long, the broker may redeliver it."""
    if request is not None:
        request.request_dict[RECEIVED] = monotonic()


def takes_lock(task: Any) -> bool:
    """Return whether a task takes a lock, so that its messages may be kept in the database."""
    return isinstance(task, OnceTask) or lock_of(task) is not None


def start_renewing(sender: Any = None, **details: Any) -> None:
    """Add the renewal of message leases to a worker that is being set up (``worker_init``)."""
    from django_tasklock.celery.messages.renewal import MessageLease  # imports Celery's worker

    sender.app.steps["consumer"].add(MessageLease)


def start_promoting(sender: Any = None, **details: Any) -> None:
    """Start promoting parked messages, in a worker that is ready (``worker_ready``)."""
    app = sender.app if sender is not None else current_app
    if not any(map(takes_lock, app.tasks.values())):
        return  # no task can be parked, so the database need not be polled
    promoter = Promoter(app)
    _promoters.append(promoter)
    promoter.start()


def end_child(**details: Any) -> None:
    """Release what a prefork child still holds when it exits, and write its counts: ``atexit`` does not run there."""
    heartbeat.flush()
    counts.flush()


def stop_promoting(**details: Any) -> None:
    """Stop promoting parked messages: the worker shuts down."""
    while _promoters:
        _promoters.pop().stop()
