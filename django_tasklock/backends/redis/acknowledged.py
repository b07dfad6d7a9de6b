"""``TASKLOCK["REPLICAS"]``: the number of replicas that must have a grant before it is returned to the caller.

``WAIT`` is sent with the script, in the same packet. Its limits are in docs/sentinel.md: a failover may promote a
replica that had not acknowledged, and renewals are not waited for.
"""

from __future__ import annotations

from typing import Any

from django_tasklock.backends.redis.keys import is_granted
from django_tasklock.backends.redis.script import bulk
from django_tasklock.exceptions import BackendUnavailable

WAIT_TIMEOUT = 500
"""Milliseconds for which the server waits for its replicas: less than our timeout for its reply."""


class Acknowledged:
    """The number of replicas that must acknowledge a grant, with the ``WAIT`` command for it."""

    def __init__(self, replicas: int) -> None:
        self.replicas = replicas
        self.command = b"*3\r\n$4\r\nWAIT\r\n" + bulk(replicas) + bulk(WAIT_TIMEOUT)

    def judge(self, replies: Any) -> Any:
        """Return the reply of the script, given its reply and that of ``WAIT``. Raises ``BackendUnavailable`` for a
        grant that too few replicas have: the caller releases it, as after a lost reply.
        """
        reply, replicas = replies
        if not is_granted(reply) or (isinstance(replicas, int) and replicas >= self.replicas):
            return reply
        said = (
            f"{replicas} of the {self.replicas} replicas that TASKLOCK['REPLICAS'] demands acknowledged that within"
            f" {WAIT_TIMEOUT} ms"
            if isinstance(replicas, int)
            else f"WAIT, which TASKLOCK['REPLICAS'] sends, failed ({replicas})"
        )
        raise BackendUnavailable(f"Redis granted it, but {said}: it is given back", down=False)
