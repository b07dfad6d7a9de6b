"""The views of limiters: each reads the request, calls ``operations``, and answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.utils.translation import gettext as _
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from django_tasklock import operations
from django_tasklock.names import bare_name
from django_tasklock.operations import LimitOutcome
from django_tasklock.operations.limits.permits import clean_limiter_name
from django_tasklock.operations.limits.values import LimitResult
from django_tasklock.rest import access, schema
from django_tasklock.rest.base import TaskLockView
from django_tasklock.rest.limits import serializers
from django_tasklock.rest.problems import Problem, as_problem


class LimitBaseView(TaskLockView):
    """The base of the views of limiters."""

    tag = "limits"
    permission: tuple[str, ...] = access.VIEW_LIMITS
    throttle_scope = "tasklock_view"
    validate = staticmethod(clean_limiter_name)

    def validate_name(self, name: str) -> str:
        """Return the limiter's name; raise a problem if it is invalid."""
        with as_problem(400, "invalid_name"):
            return self.validate(name)


class LimitActionView(LimitBaseView):
    """The base of the views that act on a limiter, with their own permission and rate."""

    permission = access.CHANGE_LIMITS
    throttle_scope = "tasklock_release"

    def perform(self, operation: Callable[..., LimitResult], name: str) -> Response:
        """Call ``operation`` with the fields of the body, and answer with the result or raise the problem."""
        given = self.read_body()
        with as_problem(501, "cannot_list"):
            result = operation(self.validate_name(name), by=self.actor(), **given)
        if result.outcome is LimitOutcome.UNKNOWN:
            raise _unknown_limiter_problem(result.name)
        if result.outcome is LimitOutcome.NOT_HELD:
            text = _("That member of %(name)r has no permit.") % {"name": result.name}
            raise Problem(404, "no_permit", text)
        if result.outcome is LimitOutcome.NOT_PAUSED:
            raise Problem(404, "not_paused", _("Rate limit %(name)r is not paused.") % {"name": result.name})
        return Response(serializers.LimitResultSerializer(result).data)


@extend_schema(
    summary="Rate limits, page by page",
    **schema.responses(serializers.LimitPageSerializer, 501, parameters=[serializers.LimitQuerySerializer]),
)
class LimitsView(LimitBaseView):
    """``GET limits``: those of the settings, and those used lately."""

    operation_id = "limits_list"

    def get(self, request: Request, **kwargs: Any) -> Response:
        """Return a page. Tenants are counted, not listed."""
        given = self.read_query(serializers.LimitQuerySerializer).validated_data
        with as_problem(501, "cannot_list"):
            found = operations.list_limits(**given)
        return Response(serializers.LimitPageSerializer(found).data)


@extend_schema(
    summary="One rate limit",
    **schema.responses(serializers.LimitDetailSerializer, 404, 501, parameters=[schema.LIMITER]),
)
class LimitView(LimitBaseView):
    """``GET limits/{name}``: its usage, its tenants, and the operators' actions on it."""

    operation_id = "limit_read"

    def get(self, request: Request, name: str, **kwargs: Any) -> Response:
        """Return the limit; 404 if it is neither in the settings nor in the store."""
        with as_problem(501, "cannot_list"):
            found = operations.get_limit(self.validate_name(name))
        if found.limit is None:
            raise _unknown_limiter_problem(found.name)
        return Response(serializers.LimitDetailSerializer(found).data)


@extend_schema(
    summary="Reset a rate limit",
    **schema.responses(serializers.LimitResultSerializer, 404, 415, 501, parameters=[schema.LIMITER]),
)
class ResetLimitView(LimitActionView):
    """``POST limits/{name}/reset``: delete the usage, the reservations, a pause and a lowered share."""

    operation_id = "limit_reset"

    def post(self, request: Request, name: str, **kwargs: Any) -> Response:
        """Reset the limiter."""
        return self.perform(operations.reset_limit, name)


@extend_schema(
    summary="Change how much of a rate limit is in force",
    **schema.responses(serializers.LimitResultSerializer, 404, 415, 501, parameters=[schema.LIMITER]),
)
class ChangeLimitView(LimitActionView):
    """``POST limits/{name}/change``: enforce a share of the callers' limit, in all processes at once."""

    operation_id = "limit_change"
    body_serializer = serializers.ChangeSerializer

    def post(self, request: Request, name: str, **kwargs: Any) -> Response:
        """Return the share in force now, and the one before."""
        return self.perform(operations.change_limit, name)


@extend_schema(
    summary="Pause a rate limit",
    **schema.responses(serializers.LimitResultSerializer, 404, 415, 501, parameters=[schema.LIMITER]),
)
class PauseLimitView(LimitActionView):
    """``POST limits/{name}/pause``: let no call pass for so long, replacing another pause. Waiters keep their turn."""

    operation_id = "limit_pause"
    body_serializer = serializers.PauseSerializer

    def post(self, request: Request, name: str, **kwargs: Any) -> Response:
        """Pause the limiter."""
        return self.perform(operations.pause_limit, name)


@extend_schema(
    summary="End the pause of a rate limit",
    **schema.responses(serializers.LimitResultSerializer, 404, 415, 501, parameters=[schema.LIMITER]),
)
class ResumeLimitView(LimitActionView):
    """``POST limits/{name}/resume``: end a pause, whatever its origin; waiters go on in their order."""

    operation_id = "limit_resume"

    def post(self, request: Request, name: str, **kwargs: Any) -> Response:
        """End the pause."""
        return self.perform(operations.resume_limit, name)


@extend_schema(
    summary="Concurrency limiters in use",
    **schema.responses(serializers.PermitsPageSerializer, 501, parameters=[serializers.PermitsQuerySerializer]),
)
class PermitsListView(LimitBaseView):
    """``GET concurrency``: those of which a permit is taken."""

    operation_id = "concurrency_list"

    def get(self, request: Request, **kwargs: Any) -> Response:
        """Return the first hundred, by name."""
        given = self.read_query(serializers.PermitsQuerySerializer).validated_data
        with as_problem(501, "cannot_list"):
            found = operations.list_permits(given["text"])
        return Response(serializers.PermitsPageSerializer(found).data)


@extend_schema(
    summary="One concurrency limiter",
    **schema.responses(serializers.PermitsSerializer, 404, 501, parameters=[schema.LIMITER]),
)
class PermitsView(LimitBaseView):
    """``GET concurrency/{name}``: the members that have its permits."""

    operation_id = "concurrency_read"
    validate = staticmethod(bare_name)

    def get(self, request: Request, name: str, **kwargs: Any) -> Response:
        """Return the members; 404 if there are none."""
        bare = self.validate_name(name)
        with as_problem(501, "cannot_list"):
            found = operations.get_permits(bare)
        if found is None:
            raise Problem(404, "unknown_limiter", _("No permit of %(name)r is taken.") % {"name": bare})
        return Response(serializers.PermitsSerializer(found).data)


@extend_schema(
    summary="Release a permit by force",
    **schema.responses(serializers.LimitResultSerializer, 404, 415, 501, parameters=[schema.LIMITER]),
)
class ReleasePermitView(LimitActionView):
    """``POST concurrency/{name}/release``: release a member's permit, of which it learns at its next heartbeat."""

    operation_id = "concurrency_release"
    validate = staticmethod(bare_name)
    body_serializer = serializers.MemberSerializer

    def post(self, request: Request, name: str, **kwargs: Any) -> Response:
        """Return the member whose permit was released."""
        return self.perform(operations.release_permit, name)


def _unknown_limiter_problem(name: str) -> Problem:
    return Problem(404, "unknown_limiter", _("No rate limit %(name)r is known.") % {"name": name})
