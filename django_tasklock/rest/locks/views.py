"""The views of locks: each reads the request, calls ``operations``, and answers."""

from __future__ import annotations

from typing import Any

from django.utils.translation import gettext as _
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from django_tasklock import operations
from django_tasklock.names import bare_name
from django_tasklock.operations import LockState, Outcome, Result
from django_tasklock.operations.values import DEAD
from django_tasklock.rest import access, schema
from django_tasklock.rest.base import TaskLockView
from django_tasklock.rest.locks import preconditions, serializers
from django_tasklock.rest.problems import Problem, as_problem


class LockBaseView(TaskLockView):
    """The base of the views of locks."""

    permission: tuple[str, ...] = access.VIEW
    throttle_scope = "tasklock_view"

    def validate_name(self, name: str) -> str:
        """Return the lock's name without the key prefix; raise a problem if it is invalid."""
        with as_problem(400, "invalid_name"):
            return bare_name(name)


class LockActionView(LockBaseView):
    """The base of the two views that act on a lock, with their own permission and rate."""

    permission = access.RELEASE
    throttle_scope = "tasklock_release"

    def respond(self, result: Result, expected: str | None) -> Response:
        """Answer with the result, or raise the problem."""
        if result.outcome is Outcome.NOT_HELD:
            raise _not_locked_problem(result.name)
        if result.outcome is Outcome.CHANGED_HANDS:
            text = _("Lock %(name)r has changed hands: its new holder was left alone.") % {"name": result.name}
            raise Problem(409 if expected is None else 412, "changed_hands", text)
        return Response(serializers.ResultSerializer(result).data)


@extend_schema(
    summary="Locks, page by page",
    **schema.responses(serializers.LockPageSerializer, 501, parameters=[serializers.QuerySerializer]),
)
class LocksView(LockBaseView):
    """``GET locks``: live ones, unless ``state`` says otherwise."""

    operation_id = "locks_list"

    def get(self, request: Request, **kwargs: Any) -> Response:
        """Return a page, and the number of locks of each kind."""
        given = self.read_query(serializers.QuerySerializer)
        dead = given.validated_data["state"] == DEAD
        with as_problem(501, "cannot_list"):
            page, counts = operations.list_locks(given.query(), dead=dead), operations.count_locks()
        data = {"locks": page.locks, "total": page.total, "next": page.next, "ordered": page.ordered, "counts": counts}
        return Response(serializers.LockPageSerializer(data).data)


@extend_schema(
    summary="One lock",
    **schema.responses(
        serializers.LockDetailSerializer,
        404,
        parameters=[schema.NAME, schema.IF_NONE_MATCH, schema.ETAG],
    ),
)
class LockView(LockBaseView):
    """``GET {name}/lock``: all that is known about it; 404 if it is not held."""

    operation_id = "lock_read"

    def get(self, request: Request, name: str, **kwargs: Any) -> Response:
        """Return the lock, or 304 if the caller has seen the present holder."""
        found = operations.get_lock(self.validate_name(name))
        if found.lock is None or found.lock.state is LockState.ORPHANED:
            raise _not_locked_problem(found.name, found.explanation)
        fingerprint = found.lock.info.fingerprint
        headers = {"ETag": preconditions.etag(fingerprint)}
        if preconditions.is_not_modified(request, fingerprint):
            return Response(status=304, headers=headers)
        return Response(serializers.LockDetailSerializer(found).data, headers=headers)


@extend_schema(
    summary="Release a lock by force",
    **schema.responses(serializers.ResultSerializer, 404, 409, 412, 415, parameters=[schema.NAME, schema.IF_MATCH]),
)
class ReleaseLockView(LockActionView):
    """``POST {name}/release-lock``: release it by force. The claim on a guarded row is revoked first."""

    operation_id = "lock_release"
    body_serializer = serializers.ReleaseSerializer

    def post(self, request: Request, name: str, **kwargs: Any) -> Response:
        """Return what was released; nothing is done if the lock has another holder by now."""
        expected = preconditions.expected_fingerprint(request)
        given = self.read_body()
        bare = self.validate_name(name)
        with as_problem(400, "invalid_row_state"):
            result = operations.release_lock(bare, by=self.actor(), fingerprint=expected, **given)
        return self.respond(result, expected)


@extend_schema(
    summary="Ask the holder to give a lock back",
    **schema.responses(serializers.ResultSerializer, 404, 409, 412, 415, parameters=[schema.NAME, schema.IF_MATCH]),
)
class AskReleaseView(LockActionView):
    """``POST {name}/ask-release``: the holder learns of it at its next heartbeat, and stops where it can."""

    operation_id = "lock_ask_release"

    def post(self, request: Request, name: str, **kwargs: Any) -> Response:
        """Request the release. The lock is still held."""
        expected = preconditions.expected_fingerprint(request)
        given = self.read_body()
        bare = self.validate_name(name)
        with as_problem(409, "nobody_to_ask"):
            result = operations.ask_release(bare, by=self.actor(), fingerprint=expected, **given)
        return self.respond(result, expected)


@extend_schema(
    summary="Who waits for a lock",
    **schema.responses(serializers.WaitersSerializer, parameters=[schema.NAME]),
)
class WaitersView(LockBaseView):
    """``GET {name}/waiters``: the waiters in all processes."""

    operation_id = "lock_waiters"

    def get(self, request: Request, name: str, **kwargs: Any) -> Response:
        """Return the waiters of a lock; a free lock has none."""
        bare = self.validate_name(name)
        return Response(serializers.WaitersSerializer(operations.list_waiters(bare)).data)


def _not_locked_problem(name: str, explanation: Any = ()) -> Problem:
    """Return the problem for a lock that is free, with the explanation."""
    said = " ".join(str(sentence) for sentence in explanation)
    return Problem(404, "not_locked", said or _("Lock %(name)r is free.") % {"name": name})
