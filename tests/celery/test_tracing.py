"""OpenTelemetry: one trace from publication to run, and nothing where nobody traces."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from django_tasklock import acquire_task_lock
from tests.support.celery_site import queue_tasks
from tests.support.once_app import OnceApp

pytest_plugins = ["tests.support.celery_site.fixtures", "tests.support.once_fixtures"]
SITE_TASKS = ["tests.support.celery_site.queue_tasks", "tests.support.celery_site.traced_tasks"]


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """What this process traces."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    yield exporter
    provider.shutdown()


def named(spans: InMemorySpanExporter, *names: str) -> list[ReadableSpan]:
    """The spans of these names, of which there is one each."""
    found = {span.name: span for span in spans.get_finished_spans()}
    assert len(found) == len(spans.get_finished_spans())
    return [found[name] for name in names]


def tracer() -> trace.Tracer:
    return trace.get_tracer("project")


class TestInOneProcess:
    def test_from_publication_to_run(self, app: OnceApp, spans: InMemorySpanExporter) -> None:
        def body() -> str:
            with tracer().start_as_current_span("body"):
                return "ran"

        task = app.task(body, key="a", name="traced.task")
        with tracer().start_as_current_span("request"):
            sent = task.delay()
        assert app.run() == ("SUCCESS", "ran")
        request, create, process, inside = named(spans, "request", "create traced.task", "process traced.task", "body")
        assert len({span.context.trace_id for span in (request, create, process, inside)}) == 1
        parents = [create.parent.span_id, process.parent.span_id, inside.parent.span_id]
        assert parents == [request.context.span_id, create.context.span_id, process.context.span_id]
        assert (create.kind, process.kind) == (trace.SpanKind.PRODUCER, trace.SpanKind.CONSUMER)
        assert process.attributes["messaging.message.id"] == create.attributes["messaging.message.id"] == sent.id
        about = process.attributes
        assert (about["tasklock.name"], about["tasklock.ran"], about["tasklock.released"]) == ("a", True, "released")
        assert about["tasklock.fence"] > 0
        assert 0 <= about["tasklock.wait"] < 60
        assert 0 <= about["tasklock.hold"] <= (process.end_time - process.start_time) / 1e9
        assert create.attributes["tasklock.name"] == "a"
        assert not trace.get_current_span().get_span_context().is_valid

    def test_a_busy_lock(self, app: OnceApp, spans: InMemorySpanExporter) -> None:
        task = app.task(key="a", on_conflict="skip", name="traced.task")
        task.delay()
        with ThreadPoolExecutor(1) as somebody:
            assert somebody.submit(acquire_task_lock, "a").result()
        assert app.run()[1]["status"] == "skipped"
        (process,) = named(spans, "process traced.task")
        assert (process.attributes["tasklock.ran"], process.attributes["tasklock.action"]) == (False, "skip")
        (event,) = process.events
        assert event.name == "busy"
        assert event.attributes["tasklock.action"] == "skip"
        assert str(os.getpid()) in event.attributes["tasklock.holder"]
        assert not {"tasklock.hold", "tasklock.wait"} & process.attributes.keys()

    def test_a_retry_is_in_the_trace_of_its_publication(self, app: OnceApp, spans: InMemorySpanExporter) -> None:
        def body(self: Any) -> str:
            if not self.request.retries:
                raise self.retry(countdown=0)
            return "ran"

        app.task(body, bind=True, key="a", name="traced.task").delay()
        assert app.run()[0] == "RETRY"
        assert app.run() == ("SUCCESS", "ran")
        create, one, two = spans.get_finished_spans()
        assert (create.name, one.name, two.name) == ("create traced.task", *["process traced.task"] * 2)
        assert one.parent.span_id == two.parent.span_id == create.context.span_id
        assert (one.attributes["tasklock.try"], two.attributes["tasklock.try"]) == (0, 1)
        assert (one.attributes["celery.state"], two.attributes["celery.state"]) == ("RETRY", "SUCCESS")

    def test_below_whoever_traces_celery(self, app: OnceApp, spans: InMemorySpanExporter) -> None:
        """Their span is nearer."""
        app.task(key="traced by nobody", name="traced.task").delay()
        with tracer().start_as_current_span("theirs"):
            app.run()
        _, theirs, process = named(spans, "create traced.task", "theirs", "process traced.task")
        assert process.parent.span_id == theirs.context.span_id

    @pytest.mark.parametrize("brought", [None, "a text", {"traceparent": 7}])
    def test_what_a_publisher_without_traces_or_with_strange_ones_sends(
        self, app: OnceApp, spans: InMemorySpanExporter, brought: Any
    ) -> None:
        app.task(key="traced by nobody", name="traced.task").delay()
        message = app.take()
        message.headers["tasklock"]["trace"] = brought
        spans.clear()
        assert app.run(message) == ("SUCCESS", "ran")
        (process,) = named(spans, "process traced.task")
        assert process.parent is None


class TestWhereNobodyTraces:
    def test_the_api_alone_adds_nothing(self, app: OnceApp) -> None:
        """Imported by some library, and no provider."""
        app.task(key="traced by nobody", name="traced.task").delay()
        message = app.take()
        assert "trace" not in message.headers["tasklock"]
        assert app.run(message) == ("SUCCESS", "ran")

    @pytest.mark.parametrize("installed", [True, False])
    def test_nobody_has_set_it_up(self, installed: bool) -> None:
        program = f"""
import sys
if not {installed}:
    sys.modules["opentelemetry"] = None
import django
django.setup()
from tests.support.once_app import once_app
with once_app() as app:
    app.task(key="traced by nobody", name="traced.task").delay()
    message = app.take()
    print("trace" in message.headers["tasklock"], app.run(message)[0])
    print("django_tasklock.celery.tracing" in sys.modules)
"""
        environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"}
        command = [sys.executable, "-c", program]
        said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, env=environment)
        assert said.stdout.split() == ["False", "SUCCESS", str(installed)]


def test_published_here_parked_there_and_run_by_another(
    celery_site: Any, spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One trace over three processes, with how long it waited and was parked."""
    monkeypatch.setenv(queue_tasks.QUICK, "1")
    first, others = ({"queue": celery_site.queue(name)} for name in ("first", "second"))
    celery_site.worker(queues=("first",))
    gate = celery_site.gate()
    celery_site.publish("traced", "a", until=gate, options=first)
    celery_site.started("a")
    parker = celery_site.worker(queues=("second",))
    with tracer().start_as_current_span("request") as request:
        second = celery_site.publish("traced", "a", options=others)
    celery_site.wait_until(lambda: celery_site.is_parked(second))
    parker.terminate()
    parker.ended()
    celery_site.worker(queues=("second",))
    gate.open()
    assert celery_site.outcome(second)[0] == "SUCCESS"

    def told() -> list[dict[str, Any]]:
        found = [(event.pid, event.more["span"]) for event in celery_site.events("span")]
        wanted = f"0x{request.get_span_context().trace_id:032x}"
        return [{**span, "pid": pid} for pid, span in found if span["context"]["trace_id"] == wanted]

    celery_site.wait_until(lambda: len(told()) == 4)
    [create] = [one for one in spans.get_finished_spans() if one.attributes.get("messaging.message.id") == second.id]
    name = "tests.support.celery_site.traced_tasks.traced"
    found = {(span["name"], span["attributes"].get("tasklock.ran")): span for span in told()}
    put_aside, ran = found[f"process {name}", False], found[f"process {name}", True]
    parked, body = found[f"parked {name}", None], found["body", None]
    for span in (put_aside, parked, ran):
        assert span["parent_id"] == f"0x{create.context.span_id:016x}"
    assert body["parent_id"] == ran["context"]["span_id"]
    assert len({os.getpid(), put_aside["pid"], ran["pid"]}) == 3
    assert put_aside["attributes"]["tasklock.action"] == "queue"
    assert ran["attributes"]["tasklock.wait"] >= parked["attributes"]["tasklock.parked"] > 0
