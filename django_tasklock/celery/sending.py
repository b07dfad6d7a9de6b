"""Sending a message again: the one that is being run, which nobody else may have."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import Any

from celery.canvas import Signature
from kombu.exceptions import EncodeError, OperationalError
from kombu.serialization import registry  # type: ignore[attr-defined]

from django_tasklock.celery.definition import patience_of

logger = logging.getLogger("django_tasklock")

PAUSE, LONGEST_PAUSE = 0.5, 5.0  # seconds between two attempts while the broker takes no messages


def send(signature: Signature[Any], task: Any) -> None:
    """Publish a message of ``task``, in this thread; while the broker takes none, try for the task's ``patience``.

    To reject it would not help: the broker refuses that as well, and has forgotten a message that was acknowledged
    early. The worker gets no other messages meanwhile. Raises the broker's error.
    """
    refusals = _refusals(task.app)
    ends, pause = time.monotonic() + patience_of(task), PAUSE
    while True:
        try:
            _send_once(signature, task)
        except refusals as error:
            if time.monotonic() + pause > ends:
                raise
            if pause == PAUSE:
                text = "%s[%s] cannot be sent again now, trying until the broker takes it: %r"
                logger.warning(text, task.name, signature.id, error)
            time.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)
        else:
            return


def _refusals(app: Any) -> tuple[type[Exception], ...]:
    """Return the errors of a broker. Kombu counts those of look-ups in, which are mistakes here: an unknown queue."""
    connection = app.connection_for_write()
    kinds = (*connection.connection_errors, *connection.channel_errors)
    return (OperationalError, *(kind for kind in kinds if not issubclass(kind, LookupError)))


def _send_once(signature: Signature[Any], task: Any) -> None:
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
