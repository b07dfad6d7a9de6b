"""OpenTelemetry: one trace from the publication of a message, over the time for which it was parked, to its run.

Imported only where OpenTelemetry is installed. In a program without a tracer messages carry nothing of it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cache
from typing import Any

from celery import signals as celery_signals
from opentelemetry import context, propagate, trace

import django_tasklock
from django_tasklock import signals
from django_tasklock.celery.message import HEADER, header_of, try_number
from django_tasklock.types import monotonic

TRACE = "trace"
"""The field of our header with the output of OpenTelemetry's propagators, ``traceparent`` and the like."""
DELIVERY = "tasklock-delivery"


@dataclass(eq=False)
class Delivery:
    """One delivery of a message in the process that runs it, with its span."""

    span: trace.Span
    published: float | None
    attached: Any = None
    """OpenTelemetry's token of the context, in which the span is the current one."""
    lock: str | None = None
    """The name of the message's lock, once it is acquired. The locks of the body come later."""
    taken: float = 0.0


def install() -> None:
    """Start tracing messages. Called once."""
    celery_signals.before_task_publish.connect(on_publish, weak=False, dispatch_uid="tasklock.trace.publish")
    celery_signals.task_prerun.connect(on_prerun, weak=False, dispatch_uid="tasklock.trace.begin")
    celery_signals.task_postrun.connect(on_postrun, weak=False, dispatch_uid="tasklock.trace.end")
    signals.message_promoted.connect(on_promoted, weak=False, dispatch_uid="tasklock.trace.promoted")


@cache
def _listen_to_locks() -> None:
    """Hear of locks, from the first delivery that has a span. Without a tracer nothing is sent for each lock."""
    signals.lock_acquired.connect(on_acquired, weak=False, dispatch_uid="tasklock.trace.acquired")
    signals.lock_released.connect(on_released, weak=False, dispatch_uid="tasklock.trace.released")
    signals.lock_conflict.connect(on_conflict, weak=False, dispatch_uid="tasklock.trace.conflict")


def on_publish(sender: Any = None, headers: Any = None, **details: Any) -> None:
    """Start the trace of one of our messages, in its header. A message that is sent again continues its own trace."""
    our_header = headers.get(HEADER) if isinstance(headers, dict) else None
    if not isinstance(our_header, dict) or TRACE in our_header or not _traces():
        return
    known = {"tasklock.name": our_header["key"]} if "key" in our_header else {}
    span = _start("create", sender, headers.get("id"), known, kind=trace.SpanKind.PRODUCER)
    if span.get_span_context().is_valid:
        our_header[TRACE] = {}
        propagate.inject(our_header[TRACE], trace.set_span_in_context(span))
    span.end()


def on_promoted(sender: Any = None, task: Any = None, task_id: Any = None, **details: Any) -> None:
    """Add a span for the time that the message was parked."""
    if (origin := _extract(details["header"])) is not None:
        now, waited = time.time_ns(), details["waited"]
        known = {"tasklock.name": sender, "tasklock.parked": waited}
        _start("parked", task, task_id, known, context=origin, start_time=now - int(waited * 1e9)).end(now)


def on_prerun(sender: Any = None, task_id: Any = None, **details: Any) -> None:
    """Start the span of a delivery. Its parent is the publication, or a span of another Celery instrumentation."""
    request = sender.request
    header = {} if request.is_eager else header_of(request)
    if not header or not _traces():
        return
    _listen_to_locks()
    origin = None if trace.get_current_span().get_span_context().is_valid else _extract(header)
    known = {"tasklock.try": try_number(request)}
    span = _start("process", sender.name, task_id, known, context=origin, kind=trace.SpanKind.CONSUMER)
    at = header.get("at") or (None, 0)
    delivery = Delivery(span, at[0] if at[1] == (request.retries or 0) else None)
    delivery.attached = context.attach(context.set_value(DELIVERY, delivery, trace.set_span_in_context(span)))
    request.__dict__[DELIVERY] = delivery


def on_postrun(sender: Any = None, state: Any = None, retval: Any = None, **details: Any) -> None:
    """End the span of a delivery."""
    delivery: Delivery | None = sender.request.__dict__.pop(DELIVERY, None)
    if delivery is None:
        return
    context.detach(delivery.attached)
    delivery.span.set_attributes({"tasklock.ran": delivery.lock is not None, "celery.state": str(state)})
    if state == "FAILURE":
        if isinstance(retval, BaseException):
            delivery.span.record_exception(retval)
        delivery.span.set_status(trace.StatusCode.ERROR, type(retval).__name__)
    delivery.span.end()


def on_acquired(sender: Any = None, fence: Any = None, **details: Any) -> None:
    """Record that a traced message has its lock, and how long it waited."""
    delivery = _current()
    if delivery is None or delivery.lock is not None:
        return
    delivery.lock, delivery.taken = sender, monotonic()
    delivery.span.set_attributes({"tasklock.name": sender, "tasklock.fence": fence})
    if delivery.published is not None:
        delivery.span.set_attribute("tasklock.wait", max(0.0, time.time() - delivery.published))


def on_released(sender: Any = None, outcome: Any = None, **details: Any) -> None:
    """Record how long the lock was held."""
    delivery = _current()
    if delivery is not None and delivery.lock == sender:
        held = monotonic() - delivery.taken
        delivery.span.set_attributes({"tasklock.hold": held, "tasklock.released": outcome.value})


def on_conflict(sender: Any = None, error: Any = None, action: Any = None, **details: Any) -> None:
    """Record that the lock was busy, who held it, and the action taken."""
    if (delivery := _current()) is not None:
        known = {"tasklock.name": sender, "tasklock.holder": str(error.holder or ""), "tasklock.action": action}
        delivery.span.add_event("busy", known)
        if delivery.lock is None:
            delivery.span.set_attribute("tasklock.action", action)


def _traces() -> bool:
    """Tell whether the program has set up a tracer."""
    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


def _current() -> Delivery | None:
    found: Any = context.get_value(DELIVERY)
    return found  # type: ignore[no-any-return]


def _extract(header: Any) -> Any:
    """Return the trace context in a message's header, or ``None``."""
    carrier = header.get(TRACE)
    known = (
        {name: value for name, value in carrier.items() if isinstance(value, str)} if isinstance(carrier, dict) else {}
    )
    return propagate.extract(known) if known else None


def _start(what: str, task: Any, task_id: Any, known: dict[str, Any], **how: Any) -> Any:
    attributes = {
        "messaging.system": "celery",
        "messaging.operation.name": "park" if what == "parked" else what,
        "messaging.message.id": str(task_id),
        "celery.task_name": str(task),
        **known,
    }
    tracer = trace.get_tracer("django_tasklock", django_tasklock.__version__)
    return tracer.start_span(f"{what} {task}", attributes=attributes, **how)
