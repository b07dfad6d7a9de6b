"""Whether and when a request is sent again after an error of a node."""

from __future__ import annotations

from functools import lru_cache
from time import monotonic

from redis.exceptions import (
    AskError,
    BusyLoadingError,
    ClusterDownError,
    MovedError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)

from django_tasklock.backends.cluster.nodes import Node, Nodes
from django_tasklock.backends.redis.errors import is_final, serves_nobody, unavailable, was_answered
from django_tasklock.backends.redis.script import Script
from django_tasklock.exceptions import BackendUnavailable

PATIENCE = 1.8
"""Seconds for which a request is repeated while nodes answer but cannot execute it: the slot is being moved, or a
primary has failed."""
LAST = 1.0
"""Seconds after which a request without an answer is not sent again. Each attempt may take ``location.TIMEOUT``."""
PAUSE = 0.02
"""Seconds between two attempts."""

# While a slot is being moved, some of its keys are at one node and some at the other, and a script fails in the middle
# when it comes to a missing key. So each script begins with a key that never exists, and fails before it has done
# anything. At the new node no script runs before the move is over, because an ASK is not followed.
GUARD = r"redis.call('EXISTS', KEYS[1] .. '\0')" + "\n"
NOT_HERE = "non local key"


@lru_cache(maxsize=1024)
def guarded(script: Script) -> Script:
    """Return the script with the guard: while its slot is being moved it fails before it has done anything."""
    return Script(GUARD + script.body, script.count, script.keys)


class Course:
    """The attempts to execute one request. ``doubt``: an earlier attempt may have been executed."""

    def __init__(self, nodes: Nodes, slot: int, began: float, again: bool) -> None:
        self._nodes = nodes
        self._slot = slot
        self._began = began
        self._again = again
        self._failures = 0
        self._met = 0
        self.doubt = False
        self.looks: float | None = None
        """When (monotonic) a node failed: unless done since, the slots must be looked up again. ``None``: no need."""
        self.without: Node | None = None
        """The node that failed: it is asked for the slots last."""

    def delay_after(self, error: RedisError | OSError, node: Node | None, sent: bool) -> float:
        """Return the seconds to wait before the next attempt. Raises ``BackendUnavailable`` if there is none.

        ``sent``: whether the request may have reached ``node``.
        """
        now = monotonic()
        passed = now - self._began
        self.looks = None
        if isinstance(error, MovedError) and node is not None:
            self._within(passed, PATIENCE, error)
            self._nodes.moved(self._slot, error, node)
            self._met += 1
            return 0.0 if self._met < 5 else PAUSE
        if in_transit(error):
            self._within(passed, PATIENCE, error)
            return PAUSE
        if unready(error):
            self._within(passed, PATIENCE, error)
            self.looks, self.without = now, node
            return PAUSE
        lost = sent and not was_answered(error)
        self.doubt = self.doubt or lost
        if is_final(error) or (lost and not self._again):
            raise unavailable(error, self.doubt) from error
        self._within(passed, LAST, error)
        self.looks, self.without = now, node
        self._failures += 1
        return 0.0 if self._failures == 1 else PAUSE

    def _within(self, passed: float, most: float, error: RedisError | OSError) -> None:
        if passed > most:
            raise self._over(error) from error

    def _over(self, error: RedisError | OSError) -> BackendUnavailable:
        if isinstance(error, MovedError):  # which is an AskError to redis-py
            return BackendUnavailable(
                f"Redis refused ({type(error).__name__}: {error}); the nodes of the cluster disagree about which"
                f" node serves slot {self._slot}: see redis-cli --cluster check and redis-cli --cluster fix",
                doubt=self.doubt,
                down=False,
            )
        if in_transit(error):
            return BackendUnavailable(
                f"Redis refused ({type(error).__name__}: {error}); slot {self._slot} of the cluster is being moved, and"
                " no script can run there until that is over: redis-cli --cluster check shows unfinished moves",
                doubt=self.doubt,
                down=False,
            )
        return unavailable(error, self.doubt)


def in_transit(error: BaseException) -> bool:
    """Tell whether the error means that the slot is being moved, so that nothing was executed."""
    return isinstance(error, AskError | TryAgainError) or (isinstance(error, ResponseError) and NOT_HERE in str(error))


def unready(error: BaseException) -> bool:
    """Tell whether the node serves no clients now, or is not a primary, so that nothing was executed."""
    if isinstance(error, ReadOnlyError | ClusterDownError | BusyLoadingError) or "READONLY" in str(error):
        return True
    return isinstance(error, ResponseError) and serves_nobody(error)
