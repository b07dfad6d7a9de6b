"""A plain view for Prometheus: no session, no login, no REST framework; protected by an API key.

A key of ``TASKLOCK["API_KEYS"]`` is sent as for the REST API. Without any keys the view is off, not open.
"""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_safe
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from django_tasklock.authentication import refusal
from django_tasklock.db.transactions import outside_transactions
from django_tasklock.metrics.collector import TaskLockCollector


@outside_transactions
@csrf_exempt
@never_cache
@require_safe
def metrics_view(request: HttpRequest) -> HttpResponse:
    """Answer ``GET metrics/`` in the accepted format, for any key."""
    if (refused := refusal(request)) is not None:
        return refused
    registry = CollectorRegistry()
    registry.register(TaskLockCollector())
    encode, content_type = choose_encoder(request.headers.get("Accept", ""))
    return HttpResponse(encode(registry), content_type)


metrics_view.login_required = False  # type: ignore[attr-defined]  # read by LoginRequiredMiddleware
