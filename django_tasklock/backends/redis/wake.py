"""Waiters for locks and permits in Redis: they sleep until a release hands the lock over; one subscription wakes all.

A waiter joins a queue inside the acquiring script, and names a channel to which this process is subscribed. The
releasing script grants the lock to the longest waiter and publishes that: two requests and one message per contended
acquisition. A script also sees whether a channel has a subscriber where it runs, so that who is dead is passed over.

A message can be lost with its connection, so a waiter also asks now and then: the queue has its token, so a lock that
was granted to it meanwhile is found to be its own. It joins the queue before the channel is subscribed, and the queue
records that: until then the lock is granted to it without a message. A waiter that has not asked for 3 seconds
(``keys.HANDOVER_TTL``) is passed over, as are all waiters of a stopped process, and gets its old rank again when it
asks.

A user who may not subscribe waits by polling a few times a second, in no order.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from abc import abstractmethod
from collections.abc import Callable
from functools import cache, partial
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from redis.exceptions import NoPermissionError, RedisError

from django_tasklock.backends.contract.codec import holder_of
from django_tasklock.backends.contract.stores import Alarm, LeaseStore, Queued, Waiter, Waiting
from django_tasklock.backends.redis.client import Client, ask, throw_away
from django_tasklock.backends.redis.keys import HANDOVER_TTL, joining
from django_tasklock.backends.redis.script import Script, load
from django_tasklock.exceptions import BackendUnavailable
from django_tasklock.types import LATEST, AcquireRequest, Busy, Grant, Holder

if TYPE_CHECKING:
    from django_tasklock.backends.redis.cluster import ClusterClient

logger = logging.getLogger("django_tasklock")

WAITERS = load("waiters")
LINGER = 30.0  # seconds for which the subscription is kept when nobody waits
REFUSAL = 60.0  # seconds for which waiters poll before the right to subscribe is tried again
CHECK = 0.25  # seconds between two looks whether the subscription is still wanted
RESUBSCRIBE_PAUSE = 0.1  # seconds between two attempts to subscribe
SUBSCRIBING = 0.9  # seconds that a waiter gives the subscription to be made before it asks again without it


class Listener:
    """Wakes the waiters of this process: a thread that is subscribed to one channel while somebody waits.

    ``client`` connects to the server that runs the scripts. Each connection has a channel of its own, so what is queued
    with the channel of a connection that was given up is passed over.
    """

    def __init__(self, client: Client | ClusterClient, new_channel: Callable[[], str]) -> None:
        self._client = client
        self._new_channel = new_channel
        self._mutex = threading.Lock()
        self._waiters: dict[str, RedisWaiter] = {}
        self._thread: threading.Thread | None = None
        self._channel = new_channel()
        self._subscribed = False
        self._given_up = ""
        self._refused_until = self._idle_since = 0.0
        self._linger = LINGER
        self._is_reported = False

    def add(self, waiter: RedisWaiter) -> tuple[str, bool] | None:
        """Wake this waiter from now on. Return the channel, and whether it is subscribed; ``None``: that is refused."""
        if monotonic() < self._refused_until:
            return None
        with self._mutex:
            self._waiters[waiter.request.token] = waiter
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="tasklock-listener", daemon=True)
                self._thread.start()
            return self._channel, self._subscribed

    def remove(self, waiter: RedisWaiter) -> None:
        """Do not wake this waiter any more."""
        with self._mutex:
            self._waiters.pop(waiter.request.token, None)
            self._idle_since = monotonic()

    def renew(self, channel: str | None = None) -> None:
        """Subscribe anew: to another channel, on another connection. ``channel``: only if that is the present one."""
        self._given_up = channel or self._channel

    def close(self) -> None:
        """End the subscription, now or when nobody waits any more. A later waiter makes one for itself."""
        self._linger = 0.0

    def _run(self) -> None:
        while True:
            connection = None
            try:
                connection = self._client.connect()
                ask(connection, "SUBSCRIBE", self._channel)
                self._is_reported = False
                self._subscribed = True
                self._wake_all(self._channel)
                if self._listen(connection):
                    return
            except NoPermissionError as error:
                self._refuse(error)
                return
            except (RedisError, OSError, ValueError) as error:  # ValueError: the connection was closed on this side
                if not self._subscribed:
                    self._report(error)
            finally:
                if connection is not None:
                    throw_away(connection)
            if self._ends():
                return
            time.sleep(RESUBSCRIBE_PAUSE)
            self._restart()

    def _listen(self, connection: Any) -> bool:
        """Wake waiters as messages arrive. Return whether nobody waits any more; else the connection is given up."""
        while self._given_up != self._channel:
            if connection.can_read(CHECK):
                kind, _, text = connection.read_response(disable_decoding=True)
                token, *message = text.decode().split(" ") if kind == b"message" else ("",)
                if (waiter := self._waiters.get(token)) is not None:
                    waiter.wake(tuple(map(int, message)))
            elif self._ends():
                return True
        return False

    def _ends(self) -> bool:
        with self._mutex:
            if self._waiters or monotonic() < self._idle_since + self._linger:
                return False
            self._thread = None
            self._channel, self._subscribed = self._new_channel(), False
            return True

    def _restart(self) -> None:
        with self._mutex:
            self._channel, self._subscribed = self._new_channel(), False

    def _refuse(self, error: NoPermissionError) -> None:
        self._refused_until = monotonic() + REFUSAL
        with self._mutex:
            self._thread = None
        warn_cannot_subscribe(str(error))
        self._wake_all()

    def _report(self, error: Exception) -> None:
        if not self._is_reported:
            logger.warning("waiters poll a few times a second, because this process cannot subscribe: %s", error)
        self._is_reported = True
        self._wake_all()

    def _wake_all(self, channel: str = "") -> None:
        """Let all waiters ask again: a message may have been lost, or nobody can send one.

        ``channel``: it is subscribed now; who knows that need not ask.
        """
        with self._mutex:
            waiters = list(self._waiters.values())
        for waiter in waiters:
            waiter.wake_unheard(channel) if channel else waiter.wake()


class QueueLayout(Protocol):
    """Keys and arguments, for locks or for permits."""

    def keys(self, name: str) -> list[str]:
        """Return the keys of the scripts that can grant."""

    def waiting(self, name: str) -> list[str]:
        """Return the keys of the waiters."""

    def arguments(self, request: AcquireRequest) -> tuple[str | int, ...]:
        """Return the arguments of ``JOIN`` for a caller that does not wait."""


class QueueStore(LeaseStore):
    """A store of locks or permits that are handed over in order of arrival."""

    wakes = True
    JOIN: ClassVar[Script]
    LEAVE: ClassVar[Script]
    client: Client | ClusterClient
    layout: QueueLayout
    listener: Listener

    @abstractmethod
    def answer(self, request: AcquireRequest, reply: Any) -> Grant | Busy:
        """Return the result in a reply of ``JOIN``."""

    def waiter(self, request: AcquireRequest) -> Waiter:
        return RedisWaiter(self, request)

    def waiters(self, name: str, limit: int = 100) -> Queued:
        return waiters_in(self.client.run(WAITERS, self.layout.waiting(name), [limit])[0])


def waiters_in(reply: list[Any]) -> Queued:
    """Return the waiters in a reply of ``waiters.lua``, without their tokens, nor those who have given theirs up."""
    now, total, *flat = reply
    found = []
    for rank, stored in zip(flat[::2], flat[1::2], strict=True):
        if stored is not None:
            seen, holder = _parts_of(stored)
            since = min(max(0, int(float(rank)) // 1000), LATEST)
            found.append(Waiting(holder, since, now, now - abs(seen) < HANDOVER_TTL))
    return Queued(found, total)


def _parts_of(stored: bytes) -> tuple[int, Holder]:
    """Return when a waiter last asked, and its holder, from what ``_waiters.lua`` stores."""
    try:
        seen, *_, holder = stored.decode().split(" ", 5)
        return int(seen), holder_of(json.loads(holder))
    except (ValueError, RecursionError):
        return 0, Holder(unreadable=True)


class RedisWaiter(Waiter):
    """One waiter in the queue of a lock or of a limiter."""

    backend: QueueStore

    def __init__(self, backend: QueueStore, request: AcquireRequest) -> None:
        super().__init__(backend, request)
        self._alarm = Alarm()
        self._hearing = threading.Lock()  # the listener's thread rings for who is not heard
        self._turn = threading.Lock()  # a request that a cancelled coroutine left behind ends before another begins
        self._rank: int | None = None  # in the queue; sent with each request, to get it back after being passed over
        self._asked = 0  # when it last asked, by the server's clock
        self._heard = ""  # its channel, if that had a subscriber then
        self._message: tuple[int, ...] = ()  # the fence that it was granted, and when it had last asked before that
        self._silent = False  # whether the last request got no reply
        self._asking = False  # whether a request of a coroutine may be on its way
        self.queued = False
        """Whether it may be in the queue."""

    def wake(self, message: tuple[int, ...] = ()) -> None:
        """Wake the waiter, to take what it was granted, or to ask again."""
        if message:
            self._message = message
        self._alarm.ring()

    def wake_unheard(self, channel: str) -> None:
        """Let the waiter ask again, unless this channel had a subscriber when it last asked."""
        with self._hearing:
            if self._heard != channel:
                self._alarm.ring()

    def acquire(self) -> Grant | Busy:
        answer = self._ask()
        if isinstance(answer, Busy) and self.queued and not self._heard:
            self._alarm.sleep(SUBSCRIBING)
            answer = self._ask(answer)
        return answer

    async def aacquire(self) -> Grant | Busy:
        undo = partial(self.backend.release, self.request.name, self.request.token)
        self._asking = True
        answer = await self.backend.in_thread(self._ask, undo=undo)
        if isinstance(answer, Busy) and self.queued and not self._heard:
            await self._alarm.asleep(SUBSCRIBING)
            answer = await self.backend.in_thread(self._ask, answer, undo=undo)
        self._asking = False
        return answer

    def _ask(self, before: Busy | None = None) -> Grant | Busy:
        """Ask once. ``before``: the answer a moment ago; if the store is down now, it is known to have been busy."""
        with self._turn:
            with self._hearing:
                self._heard = ""
                self._alarm.clear()
            self._silent = False
            try:
                place = self.backend.listener.add(self)
                return self._poll() if place is None else self._join(*place)
            except BackendUnavailable as error:
                self._silent, error.busy = True, before
                raise

    def _join(self, channel: str, subscribed: bool) -> Grant | Busy:
        self.queued = True
        keys = self.backend.layout.keys(self.request.name)
        arguments = self.backend.layout.arguments(self.request) + joining(self.request, channel, self._rank)
        reply = self.backend.client.run(self.backend.JOIN, keys, arguments)[0]
        answer = self.backend.answer(self.request, reply)
        if isinstance(answer, Grant):
            self.queued = False
        else:
            self._asked, self._rank = reply[2], reply[4]
            with self._hearing:
                self._heard = channel if reply[5] else ""
                if self._heard:
                    self._alarm.clear()  # it has rung because the channel is subscribed now
            if self._heard:
                if self._granted() is not None:
                    self._alarm.ring()
            elif subscribed:  # at another server than this one, since a failover for example
                self.backend.listener.renew(channel)
        return answer

    def _poll(self) -> Grant | Busy:
        if self.queued:
            self._leave_queue()
        return self.backend.acquire(self.request)

    def wait(self, seconds: float) -> Grant | None:
        self._alarm.sleep(seconds if self._heard else self.pause(seconds))
        return self._taken()

    async def await_(self, seconds: float) -> Grant | None:
        await self._alarm.asleep(seconds if self._heard else self.pause(seconds))
        return self._taken()

    def _taken(self) -> Grant | None:
        grant = self._granted()
        if grant is not None:
            self.queued = False
        return grant

    def _granted(self) -> Grant | None:
        """Return what it was granted since it last asked: an earlier message is about a lease that may be over."""
        if not self._message or self._message[1] != self._asked:
            return None
        return Grant(self._message[0], self.request.handover_ttl(HANDOVER_TTL))

    def leave(self) -> None:
        self.backend.listener.remove(self)
        with self._turn:
            try:
                # Without a reply to the last request, closing the channel is enough to leave the queue, and the caller
                # releases its token: do not wait for a server that may be down.
                if self.queued and not self._silent:
                    self._leave_queue()
            except BackendUnavailable as error:
                noun, name = self.backend.noun, self.request.name
                logger.warning("%s %r: a waiter left the queue and could not say so: %s", noun, name, error)
            finally:
                if self.queued:
                    self.queued = False
                    self.backend.listener.renew()

    async def aleave(self) -> None:
        self.backend.listener.remove(self)
        if self.queued or self._asking:
            await self.backend.in_thread(self.leave)

    def _leave_queue(self) -> None:
        """Leave the queue, with the lock if it was handed over."""
        self.backend.client.run(
            self.backend.LEAVE, self.backend.layout.keys(self.request.name), [self.request.token, 1]
        )
        self.queued = False


@cache  # once per process
def warn_cannot_subscribe(why: str) -> None:
    """Log that waiters poll, because this user may not subscribe."""
    logger.warning("waiters poll, in no order: Redis does not let its user SUBSCRIBE to their channels (%s)", why)
