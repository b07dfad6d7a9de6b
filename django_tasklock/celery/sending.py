"""Sending a message again whose publisher may have chosen another serializer than the task's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from celery.canvas import Signature
from kombu.exceptions import EncodeError
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


def own_serializer(task: Any) -> str:
    """Return the serializer of a task's messages if the publisher chooses none."""
    return str(task.serializer or task.app.conf.task_serializer)


def other_serializers(task: Any) -> Iterator[str]:
    """Yield the serializers that the app's workers accept, except the task's own."""
    for kind in task.app.conf.accept_content or ():
        name = registry.type_to_name.get(kind, kind)
        if name != own_serializer(task) and name in registry.name_to_type:
            yield name
