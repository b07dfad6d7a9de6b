"""The end points of limiters. Each one reads the request, asks ``operations``, and answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.utils.translation import gettext as _
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from django_tasklock import operations
from django_tasklock.exceptions import BackendUnavailable, TaskLockError, TransactionOpen
from django_tasklock.operations import LimitOutcome
from django_tasklock.operations.limits.permits import limiter_name
from django_tasklock.operations.limits.values import LimitResult
from django_tasklock.rest import permissions, problems, schema
from django_tasklock.rest.limits import serializers as limit_shapes
from django_tasklock.rest.locks import parameters
from django_tasklock.rest.locks.views import Door

__all__ = ["ChangeLimitView", "LimitView", "LimitsView", "PermitsListView", "PermitsView", "ReleasePermitView",
           "ResetLimitView"]  # fmt: skip


class LimitDoor(Door):
    """What those of limiters have in common."""

    tag = "limits"
    permission: tuple[str, ...] = permissions.VIEW_LIMITS
    throttle_scope = "tasklock_view"

    def named(self, name: str) -> str:
        """The limiter's name; ``InvalidName`` for what can be none."""
        try:
            return limiter_name(name)
        except TaskLockError as error:
            raise problems.InvalidName(str(error)) from error

    def outcome(self, result: LimitResult) -> Response:
        """What came of an act, or the problem."""
        if result.outcome is LimitOutcome.UNKNOWN:
            raise _unknown(result.name)
        if result.outcome is LimitOutcome.NOT_HELD:
            raise problems.NoPermit(_("That member of %(name)r has no permit.") % {"name": result.name})
        return Response(limit_shapes.LimitResultSerializer(limit_shapes.result(result)).data)


@extend_schema(
    summary="Rate limits, page by page",
    **schema.answers(limit_shapes.LimitPageSerializer, 501, parameters=[limit_shapes.LimitQuerySerializer]),
)
class LimitsView(LimitDoor):
    """``GET limits``: those of the settings, and those that were used lately."""

    operation_id = "limits_list"

    def get(self, request: Request, **kwargs: Any) -> Response:
        """A page. Tenants are counted, not listed."""
        taken = limit_shapes.LimitQuerySerializer(data=request.query_params)
        taken.is_valid(raise_exception=True)
        given = dict(taken.validated_data)
        with _keeping_limits():
            found = operations.list_limits(**given)
        return Response(limit_shapes.LimitPageSerializer(limit_shapes.page(found)).data)


@extend_schema(
    summary="One rate limit",
    **schema.answers(limit_shapes.LimitDetailSerializer, 404, 501, parameters=[schema.LIMITER]),
)
class LimitView(LimitDoor):
    """``GET limits/{name}``: how it stands, its tenants, and what operators did to it."""

    operation_id = "limit_read"

    def get(self, request: Request, name: str, **kwargs: Any) -> Response:
        """The limit; 404 if neither the settings nor the store know it."""
        with _keeping_limits():
            found = operations.get_limit(self.named(name))
        if found.limit is None:
            raise _unknown(found.name)
        return Response(limit_shapes.LimitDetailSerializer(limit_shapes.detail(found)).data)


@extend_schema(
    summary="Reset a rate limit",
    request=parameters.AskSerializer,
    **schema.answers(limit_shapes.LimitResultSerializer, 404, 415, 501, parameters=[schema.LIMITER]),
)
class ResetLimitView(LimitDoor):
    """``POST limits/{name}/reset``: forget what was used and booked, a pause and a lowered limit."""

    permission = permissions.CHANGE_LIMITS
    throttle_scope = "tasklock_release"
    operation_id = "limit_reset"

    def post(self, request: Request, name: str, **kwargs: Any) -> Response:
        """That it was reset."""
        given = self.given(parameters.AskSerializer)
        with _keeping_limits():
            result = operations.reset_limit(self.named(name), by=self.actor(), reason=given["reason"])
        return self.outcome(result)


@extend_schema(
    summary="Change how much of a rate limit is in force",
    request=limit_shapes.ChangeSerializer,
    **schema.answers(limit_shapes.LimitResultSerializer, 404, 415, 501, parameters=[schema.LIMITER]),
)
class ChangeLimitView(LimitDoor):
    """``POST limits/{name}/change``: a share of the limit that its callers have, for all processes at once."""

    permission = permissions.CHANGE_LIMITS
    throttle_scope = "tasklock_release"
    operation_id = "limit_change"

    def post(self, request: Request, name: str, **kwargs: Any) -> Response:
        """What is in force now, and was before."""
        given = self.given(limit_shapes.ChangeSerializer)
        with _keeping_limits():
            result = operations.change_limit(self.named(name), given["share"], by=self.actor(), reason=given["reason"])
        return self.outcome(result)


@extend_schema(
    summary="Concurrency limiters in use",
    **schema.answers(limit_shapes.PermitsPageSerializer, 501, parameters=[limit_shapes.PermitsQuerySerializer]),
)
class PermitsListView(LimitDoor):
    """``GET concurrency``: those of which somebody has a permit."""

    operation_id = "concurrency_list"

    def get(self, request: Request, **kwargs: Any) -> Response:
        """The first hundred, by name."""
        taken = limit_shapes.PermitsQuerySerializer(data=request.query_params)
        taken.is_valid(raise_exception=True)
        with _keeping_limits():
            found = operations.list_permits(taken.validated_data["text"])
        data = {"limiters": [limit_shapes.permits(view) for view in found.limiters], "more": found.more}
        return Response(limit_shapes.PermitsPageSerializer(data).data)


@extend_schema(
    summary="One concurrency limiter",
    **schema.answers(limit_shapes.PermitsSerializer, 404, 501, parameters=[schema.LIMITER]),
)
class PermitsView(LimitDoor):
    """``GET concurrency/{name}``: who has its permits."""

    operation_id = "concurrency_read"

    def get(self, request: Request, name: str, **kwargs: Any) -> Response:
        """Its members; 404 while there are none."""
        bare = self.named(name)
        with _keeping_limits():
            found = operations.get_permits(bare)
        if found is None:
            raise problems.UnknownLimiter(_("Nobody has a permit of %(name)r.") % {"name": bare})
        return Response(limit_shapes.PermitsSerializer(limit_shapes.permits(found)).data)


@extend_schema(
    summary="Release a permit by force",
    request=limit_shapes.MemberSerializer,
    **schema.answers(limit_shapes.LimitResultSerializer, 404, 415, 501, parameters=[schema.LIMITER]),
)
class ReleasePermitView(LimitDoor):
    """``POST concurrency/{name}/release``: take one member's permit. It goes on running, and learns of it."""

    permission = permissions.CHANGE_LIMITS
    throttle_scope = "tasklock_release"
    operation_id = "concurrency_release"

    def post(self, request: Request, name: str, **kwargs: Any) -> Response:
        """Who lost its permit."""
        given = self.given(limit_shapes.MemberSerializer)
        with _keeping_limits():
            result = operations.release_permit(
                self.named(name), given["member"], by=self.actor(), reason=given["reason"]
            )
        return self.outcome(result)


@contextmanager
def _keeping_limits() -> Iterator[None]:
    """What a store without limits says becomes a 501."""
    try:
        yield
    except (BackendUnavailable, TransactionOpen):
        raise
    except TaskLockError as error:
        raise problems.CannotList(str(error)) from error


def _unknown(name: str) -> problems.UnknownLimiter:
    return problems.UnknownLimiter(_("No rate limit %(name)r is known.") % {"name": name})
