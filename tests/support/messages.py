"""Parked messages without a worker that parks them."""

from __future__ import annotations

import json
import time
from typing import Any

from django_tasklock.backends.database.names import key_of
from django_tasklock.models import ParkedMessage


def park(number: int, name: str, **values: Any) -> str:
    """Store a message that waits for a lock, unsigned; return its id. Its task is none that is known here."""
    now = int(time.time() * 1000)
    known: dict[str, Any] = {
        "mode": "queue",
        "state": "parked",
        "task": "videos.process",
        "task_id": f"{name}/{number}",
    }
    known |= {"parked_at": now, "changed_at": now, "message": json.dumps({"name": name}), **values}
    row = ParkedMessage(key=key_of(name), name=name, number=number, **known)
    row.save()
    return str(row.task_id)
