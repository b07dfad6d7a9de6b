"""Parked messages without a worker that parks them."""

from __future__ import annotations

import json
import time
from typing import Any

from django_tasklock.backends.database.names import key_of
from django_tasklock.models import ParkedMessage


def message(number: int, name: str = "video:1", *, ago: float = 0, **values: Any) -> ParkedMessage:
    """A message that waits for a lock since so many seconds, unsigned. Its task is none that is known here."""
    now = int((time.time() - ago) * 1000)
    known: dict[str, Any] = {"mode": "queue", "state": "parked", "task": "videos.process", "task_id": f"id-{number}"}
    known |= {"parked_at": now, "changed_at": now, "message": json.dumps({"name": name}), **values}
    return ParkedMessage(key=key_of(name), name=name, number=number, **known)


def park(number: int, name: str = "video:1", **values: Any) -> str:
    """Store such a message; its id."""
    row = message(number, name, **values)
    row.save()
    return str(row.task_id)
