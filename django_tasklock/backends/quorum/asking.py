"""Requests to all instances at once, and their answers.

Each instance is asked by a thread of its own, so that one that hangs delays nobody else. A caller stops waiting when
the answers decide; what is on its way is executed nevertheless, and what it grants late ends with its lease.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, NamedTuple

from django.core.exceptions import ImproperlyConfigured

from django_tasklock.backends.quorum.scripts import GREET, QuorumKeys
from django_tasklock.backends.redis.client import Client, ask
from django_tasklock.backends.redis.errors import unavailable
from django_tasklock.backends.redis.location import database_of, pool_of
from django_tasklock.backends.redis.script import Script
from django_tasklock.exceptions import BackendUnavailable

LIMIT = 0.9
"""Seconds in which a majority must have answered."""
GRACE = 0.02
"""Seconds for which the others are waited for then, if the majority does not decide."""
SHORT = 0.25
"""Seconds that connecting to one instance may take, or its answer."""


class Answer(NamedTuple):
    """The answer of one instance. ``error``: why it has none; its ``doubt``: the request may have been executed."""

    reply: Any = None
    error: BackendUnavailable | None = None
    doubt: bool = False
    """Whether an earlier attempt may have been executed, too."""


Answers = Sequence[Answer]
NOT_ASKED = Answer(error=BackendUnavailable("not asked"))
TOO_LATE = Answer(error=BackendUnavailable("no answer in time", doubt=True, down=True))


class Instance:
    """One Redis. A thread asks it one thing after the other: a release does not overtake the request before it."""

    def __init__(self, location: str, keys: QuorumKeys) -> None:
        self.name = str(database_of(location))
        self.came_back_empty = False
        """Whether it has said so, perhaps to a caller that did not wait for it."""
        self._greeting = keys.greeting
        pool = pool_of(location)
        for key in ("socket_timeout", "socket_connect_timeout"):
            pool.connection_kwargs[key] = min(pool.connection_kwargs[key], SHORT)
        pool.connection_kwargs["redis_connect_func"] = self._greet
        self._client = Client(pool)
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._runs = False

    def _greet(self, connection: Any) -> None:
        """Begin with a new connection: let the server find out whether it was started again."""
        connection.on_connect()
        ask(connection, "EVAL", GREET.body, len(self._greeting), *self._greeting)

    def put(self, work: Callable[[], None]) -> None:
        """Do this in the instance's thread, which is started with the first and ends when the instance is closed."""
        self._work.put(work)
        with self._lock:
            if not self._runs:
                self._runs = True
                threading.Thread(target=self._run, name="tasklock-instance", daemon=True).start()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
            del work  # nothing is kept alive by a thread that waits

    def ask(self, script: Script, keys: Sequence[str], args: Sequence[str | bytes | int], again: bool) -> Answer:
        """Run a script, and return its reply or an error."""
        try:
            reply, doubt = self._client.run(script, keys, args, again=again)
        except BackendUnavailable as error:
            return Answer(error=error)
        except Exception as error:  # the thread goes on: others have put something, too
            return Answer(error=unavailable(error, doubt=True))
        self.came_back_empty |= reply == b"empty"
        return Answer(reply, doubt=doubt)

    def close(self) -> None:
        """Close its connection when its thread has done all."""
        with self._lock:
            self._client.close()
            if self._runs:
                self._runs = False
                self._work.put(None)


class Instances:
    """All instances. ``of``: in the order of ``LOCATION``. ``needed``: how many are a majority."""

    def __init__(self, locations: Sequence[str] | str, keys: QuorumKeys) -> None:
        self.of = instances_of(locations, keys)
        self.needed = len(self.of) // 2 + 1

    def ask(
        self,
        script: Script,
        keys: Sequence[str],
        args: Sequence[str | bytes | int] = (),
        *,
        enough: Callable[[Answers], bool] | None = None,
        only: Collection[int] | None = None,
        again: bool = True,
        patient: bool = False,
    ) -> Answers:
        """Run a script on all instances, or ``only`` on some, and return the answer of each, in order.

        ``enough``: whether the answers so far decide, so that the others need not be waited for. ``again``: whether an
        instance may be asked twice. ``patient``: wait for the others as long as for the majority.
        """
        found = [NOT_ASKED] * len(self.of)
        arrived: SimpleQueue[tuple[int, Answer]] = SimpleQueue()
        ends = give_up = monotonic() + LIMIT

        def work(index: int) -> Callable[[], None]:
            def run() -> None:
                if monotonic() < give_up:
                    arrived.put((index, self.of[index].ask(script, keys, args, again)))

            return run

        waiting = set(range(len(self.of)) if only is None else only)
        for index in waiting:
            found[index] = TOO_LATE
            self.of[index].put(work(index))
        while waiting and not (enough is not None and enough(found)):
            try:
                index, answer = arrived.get(timeout=max(0.0, ends - monotonic()))
            except Empty:
                break
            found[index] = answer
            waiting.discard(index)
            if not patient and len(replies(found)) >= self.needed:
                ends = min(ends, monotonic() + GRACE)
        return found

    def replies(self, answers: Answers) -> list[Any]:
        """Return the replies of a majority or more. Raises ``BackendUnavailable`` if too few have answered."""
        found = replies(answers)
        if len(found) < self.needed:
            raise self.too_few(answers)
        return found

    def one_is_empty(self) -> bool:
        """Return whether an instance has said since the last call that it came back empty, in time or too late."""
        found = [instance for instance in self.of if instance.came_back_empty]
        for instance in found:
            instance.came_back_empty = False
        return bool(found)

    def too_few(self, answers: Answers) -> BackendUnavailable:
        """Return the error for a request that no majority answered, or on which the answers do not agree."""
        said = len(replies(answers))
        errors = [answer.error for answer in answers if answer.error is not None and answer is not NOT_ASKED]
        first = errors[0] if errors else TOO_LATE.error
        assert first is not None
        missing = f"{self.needed} are needed" if said < self.needed else f"but no {self.needed} of them agree"
        down = sum(error.down for error in errors)
        error = BackendUnavailable(
            f"{said} of {len(answers)} Redis instances answered, {missing}: {first}",
            doubt=said > 0 or any(error.doubt for error in errors),
            down=len(answers) - down < self.needed,  # otherwise the others may be a majority to somebody else
        )
        error.__cause__ = first
        return error

    def close(self) -> None:
        """Close all connections."""
        for instance in self.of:
            instance.close()


def replies(answers: Answers) -> list[Any]:
    """Return the replies of the instances that answered."""
    return [answer.reply for answer in answers if answer.error is None]


def instances_of(locations: Sequence[str] | str, keys: QuorumKeys) -> list[Instance]:
    """Return the instances that ``LOCATION`` names. ``ImproperlyConfigured`` unless they can form a majority."""
    if isinstance(locations, str) or len(locations) < 3 or len(locations) % 2 == 0:
        raise ImproperlyConfigured(
            "QuorumBackend needs an odd number of independent Redis servers, three or more:"
            " TASKLOCK['LOCATION'] = ['redis://a:6379/0', 'redis://b:6379/0', 'redis://c:6379/0']"
        )
    found = [Instance(location, keys) for location in locations]
    seen: list[str] = []
    for instance in found:
        server = instance.name.rpartition(" of ")[2]
        if server in seen:
            raise ImproperlyConfigured(
                f"TASKLOCK['LOCATION'] has the server {server} twice, which fails once: name another one"
            )
        seen.append(server)
    return found
