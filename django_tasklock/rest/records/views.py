"""The views of the sweep and the audit trail: each reads the request, calls ``operations``, and answers."""

from __future__ import annotations

from typing import Any

from django.utils.translation import gettext as _
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from django_tasklock import operations
from django_tasklock.operations.sweep.options import MAX_SECONDS_IN_REQUEST
from django_tasklock.rest import access, schema
from django_tasklock.rest.base import TaskLockView
from django_tasklock.rest.problems import Problem, as_problem
from django_tasklock.rest.records import serializers


class SweepBaseView(TaskLockView):
    """The base of the views of the sweep."""

    tag = "sweep"
    permission: tuple[str, ...] = access.VIEW
    throttle_scope = "tasklock_view"


@extend_schema(
    summary="The last runs of the sweep",
    **schema.responses(serializers.RunListSerializer, parameters=[serializers.RunsQuerySerializer]),
)
class RunsView(SweepBaseView):
    """``GET sweeps``: the last runs, whatever started them, the latest first."""

    operation_id = "sweeps_list"

    def get(self, request: Request, **kwargs: Any) -> Response:
        """Return the last runs, and the seconds since the last sweep of everything."""
        limit = self.read_query(serializers.RunsQuerySerializer).validated_data["limit"]
        data = {"runs": operations.sweep_runs(limit), "age": operations.last_sweep_age()}
        return Response(serializers.RunListSerializer(data).data)


@extend_schema(
    summary="One run of the sweep",
    **schema.responses(serializers.RunDetailSerializer, 404, parameters=[schema.RUN]),
)
class RunView(SweepBaseView):
    """``GET sweeps/{number}``: one run with its findings; 404 if it is not recorded."""

    operation_id = "sweep_read"

    def get(self, request: Request, number: str, **kwargs: Any) -> Response:
        """Return the run; 404 also if ``number`` is not a number."""
        known = number.isascii() and number.isdecimal() and len(number) <= 18
        run = operations.find_sweep_run(int(number)) if known else None
        if run is None:
            raise Problem(404, "unknown_run", _("No run %(number)s of the sweep is recorded.") % {"number": number})
        return Response(serializers.RunDetailSerializer(run).data)


@extend_schema(
    summary="Sweep",
    **schema.responses(serializers.ReportSerializer, 415, parameters=[]),
)
class SweepView(SweepBaseView):
    """``POST sweep``: find what crashed holders left behind, and repair it if `dry_run` is false.

    It takes some seconds, at most half a minute: `report.left_out` lists what it did not reach.
    """

    permission = access.RELEASE
    throttle_scope = "tasklock_release"
    operation_id = "sweep_start"
    body_serializer = serializers.SweepSerializer

    def post(self, request: Request, **kwargs: Any) -> Response:
        """Return the report."""
        given = self.read_body()
        with as_problem(400, "invalid_sweep"):
            report = operations.sweep(by=self.actor(), longest=MAX_SECONDS_IN_REQUEST, **given)
        return Response(serializers.ReportSerializer({"report": report.as_dict()}).data)


@extend_schema(
    summary="The audit trail, page by page",
    **schema.responses(serializers.AuditPageSerializer, parameters=[serializers.AuditQuerySerializer]),
)
class AuditView(TaskLockView):
    """``GET audit``: actions on locks, limiters and messages by operators, keys and the sweep, the latest first."""

    tag = "audit"
    permission = access.VIEW_AUDIT
    throttle_scope = "tasklock_view"
    operation_id = "audit_list"

    def get(self, request: Request, **kwargs: Any) -> Response:
        """Return a page."""
        serializer = self.read_query(serializers.AuditQuerySerializer)
        given = serializer.validated_data
        page = operations.list_acts(serializer.query(), below=given["below"], limit=given["limit"])
        return Response(serializers.AuditPageSerializer(page).data)
