"""OpenTelemetry: one trace from the publication of a message, over the time for which it was parked, to its run.

OpenTelemetry is used only if the project has imported it: importing it takes longer than publishing a message, and a
project that does not import it does not trace.
"""

from __future__ import annotations

import sys
import time
from contextvars import ContextVar, Token
from importlib import import_module
from typing import Any

from celery import signals as celery_signals

import django_tasklock
from django_tasklock import signals
from django_tasklock.celery.message import HEADER, header_of, try_number
from django_tasklock.types import monotonic

TRACE = "trace"
"""The field of our header with the output of OpenTelemetry's propagators: ``traceparent`` and the like."""
API = "opentelemetry.trace"

_current: ContextVar[DeliverySpan | None] = ContextVar("tasklock_traced_run", default=None)
_listening = False


class DeliverySpan:
    """The span of one delivery in the process that runs it."""

    def __init__(self, span: Any, published: float | None) -> None:
        self.span = span
        self.published = published
        self.lock: str | None = None
        """The name of the message's lock once it is acquired: the first lock of the run, as those of the body come
        later."""
        self.attached: Any = None
        self.reset_token: Token[DeliverySpan | None] | None = None
        self._taken = 0.0
        self._held = False

    def record_acquired(self, name: str, fence: int | None) -> None:
        """Record that the message has its lock."""
        if self.lock is not None:
            return
        self.lock, self._taken, self._held = name, monotonic(), True
        self.span.set_attribute("tasklock.name", name)
        if fence is not None:
            self.span.set_attribute("tasklock.fence", fence)
        if self.published is not None:
            self.span.set_attribute("tasklock.wait", max(0.0, time.time() - self.published))

    def record_released(self, outcome: str) -> None:
        """Record how long the lock was held."""
        if self._held:
            self._held = False
            self.span.set_attribute("tasklock.hold", monotonic() - self._taken)
            self.span.set_attribute("tasklock.released", outcome)


def install() -> None:
    """Start tracing messages, if the program has a tracer. Called once."""
    celery_signals.before_task_publish.connect(on_publish, weak=False, dispatch_uid="tasklock.trace.publish")
    celery_signals.task_prerun.connect(on_prerun, weak=False, dispatch_uid="tasklock.trace.begin")
    celery_signals.task_postrun.connect(on_postrun, weak=False, dispatch_uid="tasklock.trace.end")
    signals.message_promoted.connect(on_promoted, weak=False, dispatch_uid="tasklock.trace.promoted")


def on_publish(sender: Any = None, headers: Any = None, **details: Any) -> None:
    """Start the trace of one of our messages, in its header. A message that is sent again continues its own trace."""
    our_header = headers.get(HEADER) if isinstance(headers, dict) else None
    trace = _api()
    if trace is None or not isinstance(our_header, dict) or TRACE in our_header:
        return
    attributes = _attributes(sender, headers.get("id"), "create")
    if "key" in our_header:
        attributes["tasklock.name"] = our_header["key"]
    span = _tracer(trace).start_span(f"create {sender}", kind=trace.SpanKind.PRODUCER, attributes=attributes)
    if span.get_span_context().is_valid:
        our_header[TRACE] = {}
        import_module("opentelemetry.propagate").inject(our_header[TRACE], trace.set_span_in_context(span))
    span.end()


def on_promoted(sender: Any = None, task: Any = None, task_id: Any = None, **details: Any) -> None:
    """Add a span for the time that the message was parked."""
    trace = _api()
    context = None if trace is None else _extract(details["header"])
    if trace is None or context is None:
        return
    now = time.time_ns()
    attributes = {**_attributes(task, task_id, "park"), "tasklock.name": sender, "tasklock.parked": details["waited"]}
    begun = now - int(details["waited"] * 1e9)
    span = _tracer(trace).start_span(f"parked {task}", context, attributes=attributes, start_time=begun)
    span.end(now)


def on_prerun(sender: Any = None, task_id: Any = None, **details: Any) -> None:
    """Start the span of a delivery. Its parent is the publication, or a span of another Celery instrumentation."""
    trace = _api()
    header = {} if trace is None or sender.request.is_eager else header_of(sender.request)
    if not header:
        return
    origin, links = _extract(header), []
    if trace.get_current_span().get_span_context().is_valid:
        links = [] if origin is None else [trace.Link(trace.get_current_span(origin).get_span_context())]
        origin = None
    attributes = {**_attributes(sender.name, task_id, "process"), "tasklock.try": try_number(sender.request)}
    kind = trace.SpanKind.CONSUMER
    span = _tracer(trace).start_span(f"process {sender.name}", origin, kind=kind, attributes=attributes, links=links)
    if not span.get_span_context().is_valid:
        return
    if span.is_recording():
        _connect_lock_signals()
    at = header.get("at") or (None, 0)
    delivery = DeliverySpan(span, at[0] if at[1] == (sender.request.retries or 0) else None)
    delivery.attached = import_module("opentelemetry.context").attach(trace.set_span_in_context(span))
    delivery.reset_token = _current.set(delivery)
    sender.request.__dict__[API] = delivery


def on_postrun(sender: Any = None, state: Any = None, retval: Any = None, **details: Any) -> None:
    """End the span of a delivery."""
    delivery: DeliverySpan | None = sender.request.__dict__.pop(API, None)
    if delivery is None or delivery.reset_token is None:
        return
    trace: Any = sys.modules[API]
    _current.reset(delivery.reset_token)
    import_module("opentelemetry.context").detach(delivery.attached)
    delivery.span.set_attribute("tasklock.ran", delivery.lock is not None)
    delivery.span.set_attribute("celery.state", str(state))
    if state == "FAILURE":
        if isinstance(retval, BaseException):
            delivery.span.record_exception(retval)
        delivery.span.set_status(trace.StatusCode.ERROR, type(retval).__name__)
    delivery.span.end()


def on_acquired(sender: Any = None, fence: Any = None, **details: Any) -> None:
    """Record that a traced message has its lock, and how long it waited."""
    if (delivery := _current.get()) is not None:
        delivery.record_acquired(sender, fence)


def on_released(sender: Any = None, outcome: Any = None, **details: Any) -> None:
    """Record how long the lock was held."""
    if (delivery := _current.get()) is not None and delivery.lock == sender:
        delivery.record_released(str(getattr(outcome, "value", outcome)))


def on_conflict(sender: Any = None, error: Any = None, action: Any = None, **details: Any) -> None:
    """Record that the lock was busy, who held it, and the action taken."""
    if (delivery := _current.get()) is not None:
        attributes = {"tasklock.name": sender, "tasklock.holder": str(getattr(error, "holder", "") or "")}
        delivery.span.add_event("busy", {**attributes, "tasklock.action": action})
        if delivery.lock is None:
            delivery.span.set_attribute("tasklock.action", action)


def _connect_lock_signals() -> None:
    """Connect to the signals of locks with the first span that is recorded: they cost every lock a little."""
    global _listening
    if not _listening:
        _listening = True
        signals.lock_acquired.connect(on_acquired, weak=False, dispatch_uid="tasklock.trace.acquired")
        signals.lock_released.connect(on_released, weak=False, dispatch_uid="tasklock.trace.released")
        signals.lock_conflict.connect(on_conflict, weak=False, dispatch_uid="tasklock.trace.conflict")


def _api() -> Any:
    """Return OpenTelemetry's API if the project has imported it and set a tracer provider; otherwise ``None``."""
    trace: Any = sys.modules.get(API)
    return None if trace is None or isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider) else trace


def _tracer(trace: Any) -> Any:
    return trace.get_tracer("django_tasklock", django_tasklock.__version__)


def _extract(header: Any) -> Any:
    """Return the trace context in a message's header, or ``None``."""
    carrier = header.get(TRACE)
    if API not in sys.modules or not isinstance(carrier, dict):
        return None
    known = {str(name): value for name, value in carrier.items() if isinstance(value, str)}
    return import_module("opentelemetry.propagate").extract(known) if known else None


def _attributes(task: Any, task_id: Any, operation: str) -> dict[str, Any]:
    return {
        "messaging.system": "celery",
        "messaging.operation.name": operation,
        "messaging.message.id": str(task_id),
        "celery.task_name": str(task),
    }
