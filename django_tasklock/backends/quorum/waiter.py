"""Waiting for a majority: a place in the queue of each instance, at the same rank, and a subscription at each.

A release passes the lock on in each instance separately, to the first waiter there, for a short lease. The waiters
propose the same rank to all instances, so that the first waiter is nearly always the same on all of them. It is
notified and asks for a common fence: that request grants it the lock, not the notification. If the first waiters
differ, because one arrived during the release, they settle it like contenders that do not wait (``Ballot.first``).

It promises that a waiter is woken by a release, at the latest when a majority has executed it; it also polls once a
second, in case the holder has died. Waiters are served in order of arrival, unless two arrived within about a round
trip.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from redis.exceptions import NoPermissionError, RedisError

from django_tasklock.backends.contract.leases import Waiter
from django_tasklock.backends.quorum.asking import Question, Verb
from django_tasklock.backends.quorum.ballot import Ballot
from django_tasklock.backends.quorum.scripts import JOIN, LEAVE
from django_tasklock.backends.redis.pool import throw_away
from django_tasklock.backends.redis.script import Script, bulk
from django_tasklock.backends.redis.subscribers import Subscriber, warn_cannot_subscribe
from django_tasklock.backends.redis.waiter import handed_over, warn_not_left, warn_polling
from django_tasklock.exceptions import BackendUnavailable
from django_tasklock.types import AcquireRequest, Busy, Grant

if TYPE_CHECKING:
    from django_tasklock.backends.quorum import QuorumBackend
    from django_tasklock.backends.redis.shared import Subscription

SETTLE = 0.003
"""Seconds for which a waiter that one instance has notified waits for the others to do so, too."""


class Place:
    """A place in the queues of one lock, and the requests of its waiter."""

    def __init__(self, backend: QuorumBackend, request: AcquireRequest, channel: str) -> None:
        self._verbs = backend.verbs
        self.request = request
        self.channel = channel
        self.rank = self._verbs.proposals.next()
        self.queued = False
        self.silent = False
        """Whether the last request has no answer."""

    def join(self, listens: bool) -> Verb[Grant | Busy]:
        """Acquire the lock if it is this waiter's turn; otherwise join the queues."""
        self.queued, self.silent = True, False
        ballot: Ballot | None = None
        try:
            fence, ballot, answers = yield from self._verbs.vote(
                self.request, partial(self._packed, listens), keeps=True
            )
            if fence is not None:
                self.queued = False
                return Grant(fence, self.request.ttl_ms)
            return self._verbs.busy(self.request, ballot, answers)
        except BackendUnavailable:
            self.silent = True
            raise

    def _packed(self, listens: bool, proposal: int, again: bool) -> tuple[Script, bytes]:
        joining = self._verbs.keys.joining
        return JOIN, joining(self.request, proposal, again, self.channel, self.rank, listens)

    def leave(self) -> Verb[None]:
        """Leave all queues, and release what was passed on."""
        keys = self._verbs.keys
        entry = keys.entry(self.request, self.channel)
        tail = keys.layout.keys(self.request.name) + bulk(self.request.token) + entry
        answers = yield Question(LEAVE, tail)
        self._verbs.said(answers)
        self.queued = False


class Subscriptions:
    """Subscriptions to one channel, on all instances that allow it."""

    def __init__(self, backend: QuorumBackend) -> None:
        self.channel = backend.verbs.keys.layout.new_channel()
        self._instances = backend.instances
        self._selector = selectors.DefaultSelector()
        self._open: dict[int, Subscriber] = {}
        self._warned = False

    def open(self, noun: str, name: str) -> None:
        """Subscribe on the instances without a subscription. Raises ``NoPermissionError`` if the user may not."""
        for index, instance in enumerate(self._instances):
            if index in self._open or instance.rests:
                continue
            try:
                subscriber = instance.subscribers.new(self.channel)
            except BackendUnavailable as error:
                cause = error.__cause__
                instance.failed(cause if isinstance(cause, Exception) else error)
                if not self._warned:
                    self._warned = True
                    warn_polling(noun, name, error)
                continue
            self._open[index] = subscriber
            self._selector.register(subscriber.connection._sock, selectors.EVENT_READ, index)

    def __len__(self) -> int:
        return len(self._open)

    def drain(self) -> None:
        """Discard messages for an earlier waiter."""
        while self._receive(0, ""):
            pass

    def wait_for_message(self, seconds: float, token: str, needed: int) -> bool:
        """Wait up to ``seconds`` until an instance notifies ``token``, and a moment longer for the others."""
        ends = time.monotonic() + seconds
        received: set[int] = set()
        while len(received) < min(needed, len(self._open)):
            left = ends - time.monotonic()
            if left <= 0:
                break
            before = len(received)
            received |= self._receive(left, token)
            if received and not before:
                ends = min(ends, time.monotonic() + SETTLE)
        return bool(received)

    def _receive(self, seconds: float, token: str) -> set[int]:
        received = set()
        for key, _ in self._selector.select(seconds):
            index: int = key.data
            connection = self._open[index].connection
            try:
                while connection.can_read(0):
                    said = handed_over(connection.read_response(), token)
                    if said is not None or not token:
                        received.add(index)
            except (RedisError, OSError):
                self._forget(index)
        return received

    def _forget(self, index: int) -> None:
        subscriber = self._open.pop(index)
        for key in list(self._selector.get_map().values()):
            if key.data == index:
                self._selector.unregister(key.fileobj)
        throw_away(subscriber.connection)

    def close(self) -> None:
        """Unsubscribe."""
        for index in list(self._open):
            self._forget(index)
        self._selector.close()


class QuorumWaiter(Waiter):
    """A waiter for one lock, in a thread."""

    backend: QuorumBackend

    def __init__(self, backend: QuorumBackend, request: AcquireRequest) -> None:
        super().__init__(backend, request)
        self._subscriptions: Subscriptions | None = None
        self._place: Place | None = None
        self._deaf = False
        self._twin: AsyncPlace | None = None

    def acquire(self) -> Grant | Busy:
        if self._deaf:
            return super().acquire()
        rounds = self.backend.rounds
        if self._subscriptions is None:
            self._subscriptions = self.backend.idle_subscriptions()
            fresh = self._subscriptions is None
            if self._subscriptions is None:
                self._subscriptions = Subscriptions(self.backend)
            self._place = Place(self.backend, self.request, self._subscriptions.channel)
            if fresh:
                answer = rounds.run(self._place.join(listens=False))
                if isinstance(answer, Grant):
                    return answer
        assert self._place is not None
        self._place.request = self.request
        try:
            self._subscriptions.open(self.backend.noun, self.request.name)
        except NoPermissionError as error:
            self._deaf = True
            rounds.run(self._place.leave())
            warn_cannot_subscribe(str(error))
            return self.backend.acquire(self.request)
        return rounds.run(self._place.join(listens=bool(len(self._subscriptions))))

    def wait(self, seconds: float) -> Grant | None:
        if self._subscriptions is None or not len(self._subscriptions):
            return super().wait(seconds)
        if self._subscriptions.wait_for_message(max(seconds, 0.0005), self.request.token, self.backend.verbs.needed):
            try:
                answer = self.acquire()
            except BackendUnavailable:
                return None  # the next request will tell
            if isinstance(answer, Grant):
                return answer
        return None

    def leave(self) -> None:
        place, subscriptions = self._place, self._subscriptions
        if place is None or subscriptions is None:
            return
        self._place = self._subscriptions = None
        try:
            if place.queued and not place.silent:
                self.backend.rounds.run(place.leave())
        except BackendUnavailable as error:
            warn_not_left(self.backend.noun, self.request.name, error)
        finally:
            if place.queued:
                subscriptions.close()
            else:
                self.backend.keep_subscriptions(subscriptions)

    async def aacquire(self) -> Grant | Busy:
        if self._twin is None:
            self._twin = AsyncPlace(self.backend, self.request)
        self._twin.place.request = self.request
        return await self._twin.acquire()

    async def await_(self, seconds: float) -> Grant | None:
        if self._twin is None:
            return await super().await_(seconds)
        return await self._twin.wait(seconds)

    async def aleave(self) -> None:
        if self._twin is not None:
            await self._twin.leave()


class AsyncPlace:
    """A waiter for one lock, in a coroutine, on the connections of its event loop."""

    def __init__(self, backend: QuorumBackend, request: AcquireRequest) -> None:
        self._backend = backend
        self.place = Place(backend, request, backend.verbs.keys.layout.new_channel())
        self._subscriptions: dict[int, Subscription] = {}
        self._deaf = False

    async def acquire(self) -> Grant | Busy:
        """Try to acquire the lock; join the queues if it is busy."""
        request = self.place.request
        if self._deaf:
            return await self._backend.aacquire(request)
        if not self._subscriptions:
            answer = await self._backend.arounds.run(self.place.join(listens=False))
            if isinstance(answer, Grant):
                return answer
            try:
                await self._listen()
            except NoPermissionError as error:
                self._deaf = True
                await self._backend.arounds.run(self.place.leave())
                warn_cannot_subscribe(str(error))
                return answer
        return await self._backend.arounds.run(self.place.join(listens=bool(self._subscriptions)))

    async def _listen(self) -> None:
        awake = {
            i: one for i, one in enumerate(self._backend.instances) if i not in self._subscriptions and not one.rests
        }
        found = await asyncio.gather(*(self._subscribe_at(index) for index in awake), return_exceptions=True)
        for index, error in zip(awake, found, strict=True):
            if isinstance(error, BackendUnavailable):
                awake[index].failed(error)
            elif error is not None:
                raise error

    async def _subscribe_at(self, index: int) -> None:
        self._subscriptions[index] = await self._backend.instances[index].aio.subscribe(self.place.channel)

    async def wait(self, seconds: float) -> Grant | None:
        """Sleep until the lock is passed on, ``seconds`` at most."""
        if not self._subscriptions:
            await asyncio.sleep(Waiter.pause(seconds))
            return None
        if not await self._receive(seconds):
            return None
        try:
            answer = await self.acquire()
        except BackendUnavailable:
            return None
        return answer if isinstance(answer, Grant) else None

    async def _receive(self, seconds: float) -> bool:
        listening = {
            asyncio.ensure_future(subscription.receive(seconds)): index
            for index, subscription in self._subscriptions.items()
        }
        waiting = set(listening)
        received, ends = 0, time.monotonic() + seconds + SETTLE
        try:
            while waiting and received < self._backend.verbs.needed:
                left = ends - time.monotonic()
                done, waiting = await asyncio.wait(waiting, timeout=max(0.0, left), return_when="FIRST_COMPLETED")
                if not done:
                    break
                for task in done:
                    said: Any = None
                    try:
                        said = task.result()
                    except RedisError:
                        self._subscriptions.pop(listening[task], None)
                    if handed_over(said, self.place.request.token) is not None:
                        received += 1
                        ends = min(ends, time.monotonic() + SETTLE)
        finally:
            for task in waiting:
                task.cancel()
            if waiting:
                await asyncio.wait(waiting)
        return received > 0

    async def leave(self) -> None:
        """Leave the queues, and unsubscribe."""
        subscriptions, self._subscriptions = self._subscriptions, {}
        try:
            if self.place.queued and not self.place.silent:
                await self._backend.arounds.run(self.place.leave())
        except BackendUnavailable as error:
            warn_not_left(self._backend.noun, self.place.request.name, error)
        finally:
            for subscription in subscriptions.values():
                subscription.connection.unsubscribe(subscription)
