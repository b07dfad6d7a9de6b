"""The views of parked messages: each reads the request, calls ``operations``, and answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.utils.translation import gettext as _
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from django_tasklock import operations
from django_tasklock.operations import ParkedOutcome, ParkedResult
from django_tasklock.rest import access, schema
from django_tasklock.rest.base import TaskLockView
from django_tasklock.rest.parked import serializers
from django_tasklock.rest.problems import Problem


class MessageBaseView(TaskLockView):
    """The base of the views of messages."""

    tag = "messages"
    permission: tuple[str, ...] = access.VIEW_MESSAGES
    throttle_scope = "tasklock_view"


class MessageActionView(MessageBaseView):
    """The base of the three views that act on a message, with their own permission and rate."""

    permission = access.CHANGE_MESSAGES
    throttle_scope = "tasklock_release"

    def perform(self, operation: Callable[..., ParkedResult], task_id: str) -> Response:
        """Call ``operation`` with the fields of the body, and answer with the outcome or raise the obstacle as a
        problem.
        """
        result = operation(task_id, by=self.actor(), **self.read_body())
        if result.outcome is ParkedOutcome.UNKNOWN:
            raise _unknown_message_problem(task_id)
        if not result:
            raise Problem(409, "not_done", _("Nothing was done: %(why)s.") % {"why": result.why})
        return Response(serializers.MessageResultSerializer(result._asdict()).data)


@extend_schema(
    summary="Parked messages, page by page",
    **schema.responses(serializers.MessagePageSerializer, parameters=[serializers.MessagesQuerySerializer]),
)
class MessagesView(MessageBaseView):
    """``GET parked``: the stored messages, each with what it waits for."""

    operation_id = "messages_list"

    def get(self, request: Request, **kwargs: Any) -> Response:
        """Return a page, and the number of messages in each state."""
        query = self.read_query(serializers.MessagesQuerySerializer).query()
        return Response(serializers.MessagePageSerializer(operations.list_parked(query)).data)


@extend_schema(
    summary="One parked message",
    **schema.responses(serializers.MessageSerializer, 404, parameters=[schema.MESSAGE]),
)
class MessageView(MessageBaseView):
    """``GET parked/{task_id}``: one message; 404 if there is none with this id."""

    operation_id = "message_read"

    def get(self, request: Request, task_id: str, **kwargs: Any) -> Response:
        """Return the message."""
        found = operations.find_parked(task_id)
        if found is None:
            raise _unknown_message_problem(task_id)
        return Response(serializers.MessageSerializer(found).data)


@extend_schema(
    summary="Let a dead message wait again",
    **schema.responses(serializers.MessageResultSerializer, 404, 409, 415, parameters=[schema.MESSAGE]),
)
class RequeueMessageView(MessageActionView):
    """``POST parked/{task_id}/requeue``: let a dead message wait for its lock again."""

    operation_id = "message_requeue"

    def post(self, request: Request, task_id: str, **kwargs: Any) -> Response:
        """Requeue the message."""
        return self.perform(operations.requeue_parked, task_id)


@extend_schema(
    summary="Publish a parked message now",
    **schema.responses(serializers.MessageResultSerializer, 404, 409, 415, parameters=[schema.MESSAGE]),
)
class PublishMessageView(MessageActionView):
    """``POST parked/{task_id}/publish``: publish it now, if its lock is free and it is next."""

    operation_id = "message_publish"

    def post(self, request: Request, task_id: str, **kwargs: Any) -> Response:
        """Publish the message."""
        return self.perform(operations.publish_parked, task_id)


@extend_schema(
    summary="Discard a parked message",
    **schema.responses(serializers.MessageResultSerializer, 404, 409, 415, parameters=[schema.MESSAGE]),
)
class DiscardMessageView(MessageActionView):
    """``POST parked/{task_id}/discard``: it ends as revoked, without having run."""

    operation_id = "message_discard"

    def post(self, request: Request, task_id: str, **kwargs: Any) -> Response:
        """Discard the message."""
        return self.perform(operations.discard_parked, task_id)


def _unknown_message_problem(task_id: str) -> Problem:
    return Problem(404, "unknown_message", _("No message %(id)r is parked.") % {"id": task_id})
