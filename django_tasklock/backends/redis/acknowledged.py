"""``TASKLOCK["REPLICAS"]``: so many replicas have a grant before its caller hears of it.

``WAIT`` goes out with the script, in the same packet. What it does not promise stands in docs/sentinel.md: a failover
may promote a replica that was none of those, and nobody waits for renewals.
"""

from __future__ import annotations

from typing import Any

from django_tasklock.backends.redis.script import bulk
from django_tasklock.exceptions import BackendUnavailable

PATIENCE = 500
"""Milliseconds for which the server waits for its replicas: less than the time in which it must answer."""


class Acknowledged:
    """What a grant must be acknowledged by."""

    def __init__(self, replicas: int) -> None:
        self.replicas = replicas
        self.command = b"*3\r\n$4\r\nWAIT\r\n" + bulk(replicas) + bulk(PATIENCE)

    def judge(self, replies: Any) -> Any:
        """Return what the script said, of it and ``WAIT``. Raises ``BackendUnavailable`` for a grant that too few
        replicas have: whoever asked for it gives it back, as where an answer was lost.
        """
        reply, replicas = replies
        if not isinstance(reply, int) or (isinstance(replicas, int) and replicas >= self.replicas):
            return reply
        said = (
            f"{replicas} of the {self.replicas} replicas that TASKLOCK['REPLICAS'] demands acknowledged that within"
            f" {PATIENCE} ms"
            if isinstance(replicas, int)
            else f"WAIT, which TASKLOCK['REPLICAS'] sends, failed ({replicas})"
        )
        raise BackendUnavailable(f"Redis granted it, but {said}: it is given back", down=False)
