"""A message as text that any database column keeps, and back."""

from __future__ import annotations

import base64
import json
from typing import Any

from celery.canvas import Signature
from kombu.exceptions import EncodeError
from kombu.serialization import dumps, loads

__all__ = ["seal", "unseal"]


def seal(name: str, signature: Signature[Any], task: Any) -> str:
    """The message and its lock's name, in ASCII. Raises what the serializer raises.

    What came pickled, as its publisher chose, may be nothing that the task's own serializer knows.
    """
    serializer = str(task.serializer or task.app.conf.task_serializer)
    try:
        kind, encoding, body = dumps(dict(signature), serializer=serializer)
    except (EncodeError, TypeError):
        if not {"pickle", "application/x-python-serialize"} & set(task.app.conf.accept_content):
            raise
        signature = signature.clone().set(serializer="pickle")
        kind, encoding, body = dumps(dict(signature), serializer="pickle")
    if isinstance(body, bytes):
        try:
            return json.dumps({"name": name, "type": kind, "encoding": encoding, "text": body.decode()})
        except UnicodeDecodeError:
            return json.dumps(
                {"name": name, "type": kind, "encoding": encoding, "bytes": base64.b64encode(body).decode()}
            )
    return json.dumps({"name": name, "type": kind, "encoding": encoding, "text": body})


def unseal(text: str, app: Any) -> tuple[str, Signature[Any]]:
    """The lock's name and the message, ready to be sent."""
    kept = json.loads(text)
    body = base64.b64decode(kept["bytes"]) if "bytes" in kept else kept["text"]
    return kept["name"], Signature.from_dict(
        loads(body, kept["type"], kept["encoding"], accept={kept["type"]}), app=app
    )
