"""Requests to all instances at once, from a thread: each is sent the request, then the answers are read as they arrive.

An instance whose answer cannot change the result is not waited for. Its answer is read and dropped when the connection
is used next; the server executes all that is sent meanwhile in order.
"""

from __future__ import annotations

import selectors
import time
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

import redis
from redis.exceptions import NoScriptError, RedisError

from django_tasklock.backends.quorum.asking import NOT_SENT, Answer, Pause, Question, T, Verb
from django_tasklock.backends.quorum.instances import Instance
from django_tasklock.backends.redis.errors import was_answered
from django_tasklock.backends.redis.pool import Idle, throw_away
from django_tasklock.backends.redis.script import Script
from django_tasklock.backends.redis.wire import RESTED, Link
from django_tasklock.exceptions import TaskLockError

LIMIT = 0.9
"""Seconds in which a majority must have answered."""
GRACE = 0.02
"""Seconds for which the others are waited for then, if the majority does not decide."""
MOST_OWED = 64  # the most unread answers of one instance on one connection


class InstanceConnection:
    """A connection to one instance, with unread answers."""

    def __init__(self, instance: Instance, selector: selectors.BaseSelector) -> None:
        self.instance = instance
        self._selector = selector
        self._link: Link | None = None
        self._owed: deque[int] = deque()
        self._since = 0.0
        self._sent = 0

    @property
    def connected(self) -> bool:
        """Whether there is a connection."""
        return self._link is not None

    def send(self, script: Script, tail: bytes) -> int:
        """Send a script, and return the number of its answer. Raises redis-py's errors.

        The body is sent if the server may not know the script, because an answer that says so could come too late.
        """
        now = monotonic()
        if self._owed and (now - self._since > LIMIT or len(self._owed) > MOST_OWED):
            self.fail(redis.TimeoutError("Timeout reading from Redis"))
            raise redis.TimeoutError("Timeout reading from Redis")
        if self._link is None:
            self._link = self.instance.connect()
            self._selector.register(self._link.socket, selectors.EVENT_READ, self)
        self._link.send((script.by_digest if script.sha in self.instance.known else script.by_body) + tail)
        if not self._owed:
            self._since = now
        self._sent += 1
        self._owed.append(self._sent)
        return self._sent

    def answers(self) -> list[tuple[int, Any]]:
        """Return the answers that have arrived, each with its number."""
        assert self._link is not None
        found = [(self._owed.popleft(), reply) for reply in self._link.arrived()]
        self._since = monotonic()
        return found

    def fail(self, error: Exception) -> None:
        """Close the connection, because its instance did not answer."""
        self.close()
        self.instance.failed(error)

    def close(self) -> None:
        """Close the connection."""
        link, self._link = self._link, None
        self._owed.clear()
        self.instance.known.clear()  # another server may answer at this address next
        if link is not None:
            self._selector.unregister(link.socket)
            throw_away(link.connection)


class Bundle:
    """A connection to each instance, for one thread at a time."""

    def __init__(self, instances: Sequence[Instance], needed: int, too_late: Callable[[object], None]) -> None:
        self._too_late = too_late
        self._selector = selectors.DefaultSelector()
        self._connections = [InstanceConnection(instance, self._selector) for instance in instances]
        self._needed = needed

    def settle(self) -> None:
        """Read the unread answers, and forget connections that were closed meanwhile."""
        for key, _ in self._selector.select(0):
            connection: InstanceConnection = key.data
            try:
                for _number, reply in connection.answers():
                    self._too_late(reply)
            except (RedisError, OSError, IndexError):  # IndexError: an answer without a request
                connection.close()  # the next request will tell whether the instance is down

    def exchange(self, ask: Question) -> list[Answer]:
        """Send a request to all instances, and again to those that failed, if too few have answered."""
        found = self._exchange(ask, [NOT_SENT] * len(self._connections))
        few = sum(one.error is None for one in found) < self._needed
        if few and ask.again and ask.only is None and any(one.error and not was_answered(one.error) for one in found):
            found = self._exchange(ask, found)
        return found

    def _exchange(self, ask: Question, before: list[Answer]) -> list[Answer]:
        found = list(before)
        waiting: dict[InstanceConnection, int] = {}
        rests: list[int] = []
        for index, connection in enumerate(self._connections):
            if before[index].error is None or (ask.only is not None and index not in ask.only):
                continue
            rested = not connection.connected and connection.instance.rests and before[index] is NOT_SENT
            if rested and ask.only is None:
                found[index] = Answer(error=connection.instance.error or NOT_SENT.error)
                rests.append(index)
            else:
                self._send(index, ask, found, waiting)
        if ask.only is None and len(waiting) + sum(one.error is None for one in found) < self._needed:
            for index in rests:
                self._send(index, ask, found, waiting)
        ends = monotonic() + LIMIT
        hurried = False
        while waiting and not (ask.enough is not None and ask.enough(found)):
            ready = self._selector.select(max(0.0, ends - monotonic()))
            if not ready and monotonic() >= ends:
                break
            for key, _ in ready:
                self._take(key.data, ask, found, waiting)
            if not (hurried or ask.patient) and sum(one.error is None for one in found) >= self._needed:
                ends, hurried = min(ends, monotonic() + GRACE), True
        late = redis.TimeoutError("Timeout reading from Redis")
        for connection in waiting:
            found[self._connections.index(connection)] = Answer(error=late, sent=True)
            if monotonic() >= ends and not hurried:
                connection.fail(late)
        return found

    def _send(self, index: int, ask: Question, found: list[Answer], waiting: dict[InstanceConnection, int]) -> None:
        connection = self._connections[index]
        doubt = found[index].sent or found[index].doubt
        try:
            try:
                waiting[connection] = connection.send(ask.script, ask.tail)
            except redis.ConnectionError:
                if not connection.connected:
                    raise
                connection.close()  # a server that restarted has closed it
                waiting[connection] = connection.send(ask.script, ask.tail)
            found[index] = Answer(error=NOT_SENT.error, sent=True, doubt=doubt)
        except (RedisError, OSError) as error:
            connection.fail(error)
            found[index] = Answer(error=error, sent=doubt, doubt=doubt)

    def _take(
        self, connection: InstanceConnection, ask: Question, found: list[Answer], waiting: dict[InstanceConnection, int]
    ) -> None:
        index = self._connections.index(connection)
        doubt = found[index].doubt
        try:
            arrived = connection.answers()
        except (RedisError, OSError, IndexError) as error:
            connection.fail(error)
            if waiting.pop(connection, None) is not None:
                found[index] = Answer(error=error, sent=True, doubt=doubt)
            return
        connection.instance.answered()
        for number, reply in arrived:
            if waiting.get(connection) != number:
                self._too_late(reply)
                continue
            del waiting[connection]
            if isinstance(reply, NoScriptError):
                connection.instance.known.clear()
                self._send(index, ask, found, waiting)
            elif isinstance(reply, Exception):
                found[index] = Answer(error=reply, sent=not was_answered(reply), doubt=doubt)
                if not was_answered(reply):
                    connection.fail(reply)
            else:
                connection.instance.known.add(ask.script.sha)
                found[index] = Answer(reply, doubt=doubt)

    def close(self) -> None:
        """Close all connections of this bundle."""
        for connection in self._connections:
            connection.close()
        self._selector.close()


class Rounds:
    """Runs operations for the threads of this process."""

    def __init__(self, instances: Sequence[Instance], needed: int, too_late: Callable[[object], None]) -> None:
        self._too_late = too_late
        self._instances = instances
        self._needed = needed
        self._idle: Idle[Bundle] = Idle(Bundle.close)

    def run(self, verb: Verb[T]) -> T:
        """Run an operation, and return its result."""
        bundle = self._taken()
        try:
            ask = next(verb)
            while True:
                if isinstance(ask, Pause):
                    time.sleep(ask.seconds)
                    ask = verb.send([])
                else:
                    ask = verb.send(bundle.exchange(ask))
        except StopIteration as done:
            self._idle.keep(bundle)
            result: T = done.value
            return result
        except TaskLockError:
            self._idle.keep(bundle)
            raise
        except BaseException:  # interrupted, perhaps in the middle of a packet
            bundle.close()
            raise

    def _taken(self) -> Bundle:
        found = self._idle.take()
        if found is None:
            return Bundle(self._instances, self._needed, self._too_late)
        bundle, since = found
        if monotonic() - since >= RESTED:
            bundle.settle()
        return bundle

    def close(self) -> None:
        """Close all idle connections, and those in use when they are put back."""
        self._idle.close()
