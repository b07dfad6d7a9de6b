"""A worker that traces: every span that ends in one of its processes is written into the journal."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

from celery import shared_task
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from django_tasklock import task_lock
from tests.support.celery_site.configuration import ENVIRONMENT
from tests.support.celery_site.journal import note
from tests.support.celery_site.tasks import hold_here

__all__ = ["Journal", "traced"]


class Journal(SpanExporter):
    """An exporter to the journal, in whichever process."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        for span in spans:
            note("span", span.name, span=json.loads(span.to_json()))
        return SpanExportResult.SUCCESS


if ENVIRONMENT in os.environ:  # in a worker; the test has an exporter of its own
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(Journal()))
    trace.set_tracer_provider(provider)


@shared_task
@task_lock("hold:{key}", on_conflict="queue")
def traced(key: str, seconds: float = 0.0, until: str | None = None) -> dict[str, object]:
    """A body with a span of its own."""
    with trace.get_tracer("project").start_as_current_span("body"):
        return hold_here(key, seconds, until)
