"""Waiters for locks and permits in Redis: they sleep on a subscription until a release hands the lock over.

A waiter joins a queue inside the acquiring script and subscribes to a channel of its own. The
releasing script grants the lock to the longest waiter and publishes that: two requests and one
message per contended acquisition. The number of subscribers that the publish reaches shows whether
the waiter is alive.

A message can be lost with its connection, so a waiter also polls now and then: its queue entry has
its token, so a lock that was granted to it meanwhile is found to be its own. It joins the queue
before it is subscribed, and the queue records that: until then the lock is granted to it without a
message. A waiter that has not polled for 3 seconds (``keys.HANDOVER_TTL``) is passed over, as
are all waiters of a stopped process, and gets its old rank again when it polls.

A user who may not subscribe waits by polling a few times a second, in no order.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import abstractmethod
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from redis.exceptions import NoPermissionError, RedisError

from django_tasklock.backends.contract.leases import LeaseStore, Waiter
from django_tasklock.backends.redis.keys import HANDOVER_TTL, joining
from django_tasklock.backends.redis.script import packed
from django_tasklock.backends.redis.subscribers import Subscriber, warn_cannot_subscribe
from django_tasklock.exceptions import BackendUnavailable
from django_tasklock.types import AcquireRequest, Busy, Grant

if TYPE_CHECKING:
    from django_tasklock.backends.redis.connections import Asking, AsyncAsking, Listening
    from django_tasklock.backends.redis.script import Script
    from django_tasklock.backends.redis.shared import Subscription

logger = logging.getLogger("django_tasklock")

RESUBSCRIBE_PAUSE = 0.1  # seconds between two attempts to subscribe again


class QueueLayout(Protocol):
    """Keys and arguments, for locks or for permits."""

    def keys(self, name: str) -> list[str]:
        """Return the keys of the scripts that can grant."""

    def arguments(self, request: AcquireRequest) -> tuple[str | int, ...]:
        """Return the arguments of ``JOIN`` for a caller that does not wait."""

    def new_channel(self) -> str:
        """Return a new name for a channel."""


class QueueStore(LeaseStore):
    """A store of locks or permits that are handed over in order of arrival."""

    wakes = True
    JOIN: ClassVar[Script]
    LEAVE: ClassVar[Script]
    layout: QueueLayout

    @property
    @abstractmethod
    def wire(self) -> Asking:
        """The connections of this process's threads, made on first use."""

    @property
    @abstractmethod
    def subscribers(self) -> Listening:
        """The connections on which this process's threads wait."""

    @property
    @abstractmethod
    def aio(self) -> AsyncAsking:
        """The connections of this process's event loops."""

    @abstractmethod
    def answer(self, request: AcquireRequest, reply: Any) -> Grant | Busy:
        """Return the result in a reply of ``JOIN``."""

    def waiter(self, request: AcquireRequest) -> Waiter:
        return RedisWaiter(self, request)


class RedisWaiter(Waiter):
    """One waiter in the queue of a lock or of a limiter."""

    backend: QueueStore

    def __init__(self, backend: QueueStore, request: AcquireRequest) -> None:
        super().__init__(backend, request)
        self.subscriber: Subscriber | None = None
        self.channel = ""  # in the queue entry, also after the connection was lost
        self._rank: int | None = None  # in the queue; sent with each poll, to get it back after being passed over
        self.queued = False
        self._polls = False  # this user may not subscribe
        self._unanswered = False  # the last acquire() got no reply
        self._first_answer: Busy | None = None  # the reply to the first of the two requests of an acquire()

    def acquire(self) -> Grant | Busy:
        self._unanswered, self._first_answer = False, None
        try:
            return self._acquire()
        except BackendUnavailable as error:
            self._unanswered, error.busy = True, self._first_answer
            raise

    def _acquire(self) -> Grant | Busy:
        if self._polls:
            return self.backend.acquire(self.request)
        if not self.channel:
            self.subscriber = self.backend.subscribers.idle()
            self.channel = self.subscriber.channel if self.subscriber else self.backend.layout.new_channel()
        if self.subscriber is not None and not self.backend.subscribers.is_subscribed(self.subscriber):
            self.backend.subscribers.discard(self.subscriber)
            self.subscriber = None
        if self.subscriber is None:
            # Join first: connecting takes several round trips, and later waiters must not get ahead meanwhile.
            answer = self._join()
            if isinstance(answer, Grant):
                return answer
            try:
                self.subscriber = self.backend.subscribers.new(self.channel)
            except NoPermissionError as error:
                self._polls = True
                self._leave_queue()
                warn_cannot_subscribe(str(error))
                return answer
            except BackendUnavailable as error:
                warn_polling(self.backend.noun, self.request.name, error)
                return answer
        return self._join()

    def _join(self) -> Grant | Busy:
        self.queued = True
        keys = self.backend.layout.keys(self.request.name)
        arguments = self.backend.layout.arguments(self.request) + joining(self.request, self.channel, self._rank)
        reply = self.backend.wire.run(self.backend.JOIN, keys, arguments)[0]
        answer = self.backend.answer(self.request, reply)
        if isinstance(answer, Grant):
            self.queued = False
        else:
            self._first_answer, self._rank = answer, reply[4]
        return answer

    def _leave_queue(self) -> None:
        self.backend.wire.run(self.backend.LEAVE, self.backend.layout.keys(self.request.name), [self.request.token, 1])
        self.queued = False

    def wait(self, seconds: float) -> Grant | None:
        if self.subscriber is None:
            return super().wait(seconds)
        connection = self.subscriber.connection
        try:
            while connection.can_read(max(seconds, 0.0005)):
                fence = handed_over(connection.read_response(), self.request.token)
                if fence is not None:
                    self.queued = False
                    return Grant(fence, self.request.handover_ttl(HANDOVER_TTL))
                seconds = 0.0  # the message was for the former waiter on this connection
        except (RedisError, OSError):  # the message may be lost: the next acquire() will show
            self.backend.subscribers.discard(self.subscriber)
            self.subscriber = None
            self._resubscribe(seconds)
        except BaseException:
            self.backend.subscribers.discard(self.subscriber)
            self.subscriber = None
            raise
        return None

    def _resubscribe(self, seconds: float) -> None:
        """Subscribe again to the channel of the queue entry, retrying for ``seconds``: a restart takes a moment."""
        ends = time.monotonic() + seconds
        while True:
            try:
                self.subscriber = self.backend.subscribers.new(self.channel)
                return
            except (BackendUnavailable, NoPermissionError):
                if time.monotonic() >= ends:
                    return
            time.sleep(self.pause(RESUBSCRIBE_PAUSE))

    def leave(self) -> None:
        try:
            # Without a reply to the last request, closing the channel is enough to leave the queue, and the caller
            # releases its token: do not wait for a server that may be down.
            if self.queued and not self._unanswered:
                self._leave_queue()
        except BackendUnavailable as error:
            warn_not_left(self.backend.noun, self.request.name, error)
        finally:
            if self.queued:
                self._close()
            elif self.subscriber is not None:
                self.backend.subscribers.keep(self.subscriber)
                self.subscriber = None

    def _close(self) -> None:
        """Leave without a request: an entry whose channel has no subscriber is skipped, and a lock that was just handed
        over expires soon.
        """
        self.queued = False
        if self.subscriber is not None:
            self.backend.subscribers.discard(self.subscriber)
            self.subscriber = None

    async def aacquire(self) -> Grant | Busy:
        return await self._async_waiter.acquire()

    async def await_(self, seconds: float) -> Grant | None:
        return await self._async_waiter.wait(seconds)

    async def aleave(self) -> None:
        await self._async_waiter.leave()

    @cached_property
    def _async_waiter(self) -> AsyncWaiter:
        return AsyncWaiter(self.backend, self.request)


class AsyncWaiter:
    """``RedisWaiter`` for a coroutine, on the connections of its event loop."""

    def __init__(self, backend: QueueStore, request: AcquireRequest) -> None:
        self.backend = backend
        self.request = request
        self.channel = ""
        self._rank: int | None = None
        self._subscription: Subscription | None = None
        self.queued = False
        self._polls = False
        self._unanswered = False
        self._first_answer: Busy | None = None

    async def acquire(self) -> Grant | Busy:
        """Try to take the lock, and join the queue for it if it is busy."""
        self._unanswered, self._first_answer = False, None
        try:
            return await self._acquire()
        except BackendUnavailable as error:
            self._unanswered, error.busy = True, self._first_answer
            raise

    async def _acquire(self) -> Grant | Busy:
        if self._polls:
            return await self.backend.aacquire(self.request)
        if not self.channel:
            self._subscription = self.backend.aio.idle_subscription()
            self.channel = self._subscription.channel if self._subscription else self.backend.layout.new_channel()
        if self._subscription is not None and not self.backend.aio.is_subscribed(self._subscription):
            self._subscription.connection.unsubscribe(self._subscription)
            self._subscription = None
        if self._subscription is None:
            answer = await self._join()
            if isinstance(answer, Grant):
                return answer
            try:
                self._subscription = await self.backend.aio.subscribe(self.channel)
            except NoPermissionError as error:
                self._polls = True
                await self._leave_queue()
                warn_cannot_subscribe(str(error))
                return answer
            except BackendUnavailable as error:
                warn_polling(self.backend.noun, self.request.name, error)
                return answer
        return await self._join()

    async def _join(self) -> Grant | Busy:
        self.queued = True
        keys = self.backend.layout.keys(self.request.name)
        arguments = self.backend.layout.arguments(self.request) + joining(self.request, self.channel, self._rank)
        reply = (await self.backend.aio.call(*packed(self.backend.JOIN, keys, arguments)))[0]
        answer = self.backend.answer(self.request, reply)
        if isinstance(answer, Grant):
            self.queued = False
        else:
            self._first_answer, self._rank = answer, reply[4]
        return answer

    async def _leave_queue(self) -> None:
        keys = self.backend.layout.keys(self.request.name)
        await self.backend.aio.call(*packed(self.backend.LEAVE, keys, [self.request.token, 1]))
        self.queued = False

    async def wait(self, seconds: float) -> Grant | None:
        """Sleep until the lock is handed over, for at most ``seconds``."""
        if self._subscription is None:
            await asyncio.sleep(Waiter.pause(seconds))
            return None
        try:
            message = await self._subscription.receive(seconds)
        except RedisError:
            self._subscription = None
            await self._resubscribe(seconds)
            return None
        fence = handed_over(message, self.request.token)
        if fence is None:
            return None
        self.queued = False
        return Grant(fence, self.request.handover_ttl(HANDOVER_TTL))

    async def _resubscribe(self, seconds: float) -> None:
        ends = time.monotonic() + seconds
        while True:
            try:
                self._subscription = await self.backend.aio.subscribe(self.channel)
                return
            except (BackendUnavailable, NoPermissionError):
                if time.monotonic() >= ends:
                    return
            await asyncio.sleep(Waiter.pause(RESUBSCRIBE_PAUSE))

    async def leave(self) -> None:
        """Leave the queue and give up the subscription."""
        subscription, self._subscription = self._subscription, None
        try:
            if self.queued and not self._unanswered:
                await self._leave_queue()
        except BackendUnavailable as error:
            warn_not_left(self.backend.noun, self.request.name, error)
        finally:
            if subscription is None:
                pass
            elif self.queued:  # without a subscriber, the queue entry is skipped
                subscription.connection.unsubscribe(subscription)
            else:
                self.backend.aio.keep(subscription)


def warn_not_left(noun: str, name: str, error: BackendUnavailable) -> None:
    """Log that a waiter left without removing its queue entry, because the store did not reply."""
    logger.warning("%s %r: a waiter left the queue and could not say so: %s", noun, name, error)


def warn_polling(noun: str, name: str, error: BackendUnavailable) -> None:
    """Log that a waiter could not subscribe: the lock is busy, so it polls until it can."""
    logger.warning("%s %r: a waiter polls a few times a second, because it cannot subscribe: %s", noun, name, error)


def handed_over(message: Any, token: str) -> int | None:
    """Return the fence, if this message grants the lock to ``token``."""
    if not (isinstance(message, list) and message[0] == b"message"):
        return None
    whose, _, fence = message[2].decode().partition(" ")
    return int(fence) if whose == token else None
