"""Plain views: no session, no login, no template, no REST framework."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db import connections
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_safe

from django_tasklock.db.transactions import outside_transactions
from django_tasklock.health.database import check_databases
from django_tasklock.health.store import check_locks

_View = Callable[..., HttpResponse]


def _public(view: _View) -> _View:
    """Make the view public and non-atomic, since no transaction can begin while a database is down.

    It is exempt from CSRF, so that a POST is answered with 405, and there is nothing to protect.
    """
    view = outside_transactions(csrf_exempt(never_cache(require_safe(view))))
    view.login_required = False  # type: ignore[attr-defined]  # read by LoginRequiredMiddleware
    return view


@_public
def db_view(request: HttpRequest, alias: str | None = None) -> HttpResponse:
    """Answer ``GET health/db``, or ``health/db/<alias>``: 200 if every database answers, else 503."""
    if alias is not None and alias not in connections:
        raise Http404
    found = check_databases(*([] if alias is None else [alias]))
    first = found.get("default") or next(iter(found.values()))
    return _respond(all(one["reachable"] for one in found.values()), {"pool": first["pool"], "databases": found})


@_public
def locks_view(request: HttpRequest) -> HttpResponse:
    """Answer ``GET health/locks``: 200 if the store answers and the leases of this process are renewed, else 503."""
    state = check_locks()
    return _respond(state.pop("healthy"), state)


def _respond(healthy: bool, state: dict[str, Any]) -> JsonResponse:
    status = "healthy" if healthy else "unhealthy"
    return JsonResponse({"status": status, **state}, status=200 if healthy else 503)
