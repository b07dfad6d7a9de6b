"""Sending a message again whose publisher may have chosen another serializer than the task's own, and its failures."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

from celery.canvas import Signature
from kombu.exceptions import EncodeError, OperationalError
from kombu.serialization import registry  # type: ignore[attr-defined]


def send(signature: Signature[Any], task: Any) -> None:
    """Publish a message with its task's serializer, or with another one that the app accepts."""
    try:
        signature.apply_async()
    except (EncodeError, TypeError):
        for serializer in other_serializers(task):
            try:
                signature.clone().set(serializer=serializer).apply_async()
            except (EncodeError, TypeError):
                continue
            return
        raise


def was_not_sent(error: BaseException, handled: BaseException | None) -> bool:
    """Return whether a message is certainly not in the broker, given the error with which its publication failed: it
    could not be encoded, or the broker accepted no connection. A connection that is lost may have carried the message.

    ``handled``: the exception that the caller was handling before, if any, which is the context of such an error.
    """
    if isinstance(error, EncodeError):
        return True
    if not isinstance(error, OperationalError):
        return False
    refused, cause = False, error.__cause__
    while cause is not None and cause is not handled:
        if isinstance(cause, ConnectionRefusedError | FileNotFoundError | socket.gaierror):
            refused = True
        # kombu connects again after a loss, and redis-py connects if its pool is empty (``IndexError``).
        elif not isinstance(cause, IndexError) and " connecting to " not in str(cause):
            return False
        cause = cause.__cause__ or cause.__context__
    return refused


def own_serializer(task: Any) -> str:
    """Return the serializer of a task's messages if the publisher chooses none."""
    return str(task.serializer or task.app.conf.task_serializer)


def other_serializers(task: Any) -> Iterator[str]:
    """Yield the serializers that the app's workers accept, except the task's own."""
    for kind in task.app.conf.accept_content or ():
        name = registry.type_to_name.get(kind, kind)
        if name != own_serializer(task) and name in registry.name_to_type:
            yield name
