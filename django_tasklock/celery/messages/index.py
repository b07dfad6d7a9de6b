"""The broker's index of unacknowledged messages, over a connection of our own.

kombu stores each message that a worker has fetched in a hash, and the time of the fetch in a sorted set. A worker that
scans the set requeues the messages that are older than the visibility timeout. Setting a new time renews the message;
``XX`` makes sure that this does not restore one that was acknowledged meanwhile. Like kombu's own, the times are those
of the workers' clocks: machines whose clocks differ by more than a lease take each other's messages for abandoned.

A worker that renews writes whole seconds, from the fetch on, and only such messages have a lease. Those of other
workers, whose times have fractions, are left to kombu.

The connection is made by kombu, so TLS, Sentinel, sockets and key prefixes are as the project has set them.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from typing import Any, NamedTuple

from django_tasklock.exceptions import BackendUnavailable
from django_tasklock.types import monotonic

PREFIX = "tasklock_message_leases"
"""What the keys beside kombu's own begin with."""
MUTEX = f"{PREFIX}_mutex"
"""The key of the mutex for requeuing abandoned messages."""
REPLY_TIMEOUT = 2.0
"""Seconds in which the broker has to answer a process that is no worker."""
LIMIT = 10_000
"""The most messages of a sample."""
CHUNK = 1000
"""Messages renewed by one command: Redis serves no other client meanwhile."""


class Unacknowledged(NamedTuple):
    """A message that a worker has fetched and not acknowledged."""

    task: str
    task_id: str
    queues: tuple[str, ...]
    """Where it is put back; empty if that is unknown."""


class Index:
    """A connection to the broker of ``connection``, for one thread at a time. All methods may raise any error."""

    def __init__(self, connection: Any, lease: float, patience: float) -> None:
        options = {
            **connection.transport_options,
            "socket_timeout": patience,
            "socket_connect_timeout": patience,
        }
        self._lease = lease
        self._patience = patience
        self._connection = connection.clone(transport_options=options, connect_timeout=patience)
        self._opened: Any = None
        self._read_all = -math.inf
        """When this connection last read the index from its beginning, which has all countdowns of other workers."""
        self._nothing_until = 0.0
        """The time before which no message with a lease was renewed at last, as of then."""
        self._queues: dict[tuple[str, str], tuple[str, ...]] = {}

    @property
    def connected(self) -> bool:
        """Whether a connection is open. The next request opens one."""
        return self._opened is not None

    def renew(self, tags: Iterable[str]) -> None:
        """Renew the leases of those of these messages that still exist."""
        with self._client() as client:
            rest = iter(tags)
            while chunk := list(islice(rest, CHUNK)):
                client.zadd(self._channel.unacked_index_key, dict.fromkeys(chunk, renewed_now()), xx=True)

    def restore(self) -> None:
        """Requeue the messages whose lease has expired, unless another worker is doing so. What takes too long remains
        for the next call.
        """
        from kombu.transport.redis import Mutex, MutexHeld  # it needs redis-py

        began, before = monotonic(), time.time() - self._lease
        if began - self._read_all >= self._lease:  # somebody's clock may have been set meanwhile
            self._read_all, self._nothing_until = began, 0.0
        if not self._renewed_between(self._nothing_until, before):
            self._nothing_until = before
            return
        # A worker that is killed while it requeues blocks all others for this long. With kombu's own mutex, which kombu
        # takes from time to time as well, it would be five minutes.
        expires = max(1, int(self._patience * 2))
        with contextlib.suppress(MutexHeld), self._client() as client, Mutex(client, MUTEX, expires):
            # Read again: what another worker has put back meanwhile may have been fetched since.
            lapsed = [*self._renewed_between(self._nothing_until, before)]
            for tag in lapsed[::-1][: self._channel.unacked_restore_limit]:  # the oldest becomes the next
                if monotonic() - began > self._patience:  # the worker has its own to renew, and the mutex expires
                    break
                self.requeue(tag)

    def lapsed(self, since: float = 0.0) -> dict[str, float]:
        """Return the delivery tags of messages whose lease expired ``since`` seconds ago, or before, each with the time
        of its last renewal.
        """
        return self._renewed_between(0.0, time.time() - self._lease - since)

    def _renewed_between(self, first: float, last: float) -> dict[str, float]:
        with self._client() as client:
            # As in read(); ZRANGE is prefixed by kombu 5.7 and by none before.
            key = f"{self._channel.global_keyprefix}{self._channel.unacked_index_key}"
            found = client.zrangebyscore(key, first, last, withscores=True)
        return {_text(tag): at for tag, at in found if at.is_integer()}

    def unacknowledged(self, tag: str) -> Unacknowledged | None:
        """Return a message that a worker has fetched; ``None`` if it is acknowledged."""
        with self._client() as client:
            text = client.hget(self._channel.unacked_key, tag)
        return None if text is None else self._unacknowledged(text)

    def sample_unacknowledged(self) -> tuple[int, list[Unacknowledged]]:
        """Return the number of messages that workers have fetched, and ten thousand of them, or all."""
        with self._client() as client:
            number = client.hlen(self._channel.unacked_key)
            key = f"{self._channel.global_keyprefix}{self._channel.unacked_key}"
            found = islice(client.hscan_iter(key, count=CHUNK), LIMIT)
            return number, [self._unacknowledged(text) for _, text in found]

    def _unacknowledged(self, text: str | bytes) -> Unacknowledged:
        raw, exchange, key = json.loads(text)
        headers = raw.get("headers") or {}
        return Unacknowledged(headers.get("task") or "", headers.get("id") or "", self.queues_of(exchange, key))

    def queues_of(self, exchange: str, key: str) -> tuple[str, ...]:
        """Return the queues of a message with this routing key; empty if they are unknown."""
        if not exchange:
            return (key,)
        if (exchange, key) not in self._queues:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that there is none
                self._queues[exchange, key] = tuple(filter(None, self._channel._lookup(exchange, key)))
        return self._queues[exchange, key]

    def declare_exchanges(self, queues: Iterable[Any]) -> None:
        """Tell kombu the types of the exchanges of these queues, by which it finds the queues of a message."""
        for queue in queues:
            if queue.exchange:
                queue.exchange(self._channel).declare()

    def waiting_in(self, queue: str) -> int:
        """Return the number of messages of a queue that no worker has fetched."""
        return int(self._channel._size(queue))

    def requeue(self, tag: str) -> None:
        """Put a message back into its queue, where it is the next."""
        self._channel.qos.restore_by_tag(tag)

    def record_fetched(self, message: Any) -> None:
        """Record again that this message is fetched and unacknowledged."""
        self._channel.qos.append(message, message.delivery_tag)

    def acknowledge(self, tag: str) -> None:
        """Remove the message."""
        self._channel.qos.ack(tag)

    def reject(self, tag: str) -> None:
        """Put a message back at the end of its queue, as kombu does with one that is to be requeued."""
        self._channel.qos.reject(tag, requeue=True)

    def write(self, key: str, field: str, text: str) -> None:
        """Set a field of the hash ``key``."""
        with self._client() as client:
            client.hset(key, field, text)

    def remove(self, key: str, fields: Sequence[str]) -> None:
        """Delete fields of the hash ``key``."""
        with self._client() as client:
            client.hdel(key, *fields)

    def read(self, key: str) -> Mapping[str, str]:
        """Return the hash ``key``."""
        with self._client() as client:
            # kombu's client prefixes the keys of the commands that kombu itself uses, and of no others.
            found = client.hgetall(f"{self._channel.global_keyprefix}{key}")
        return {_text(field): _text(value) for field, value in found.items()}

    def set_once(self, key: str, seconds: float) -> bool:
        """Return whether this is the first call for the same key, by any worker, within ``seconds``."""
        with self._client() as client:
            return bool(client.set(key, "1", nx=True, px=round(seconds * 1000)))

    def uptime(self) -> float | None:
        """Return the seconds since the server was started; ``None`` if it does not say."""
        with self._client() as client:
            uptime = client.info("server").get("uptime_in_seconds")
        return None if uptime is None else float(uptime)

    def clock_lead(self) -> float:
        """Return the seconds by which the server's clock is ahead of this machine's, including the network delay."""
        with self._client() as client:
            seconds, microseconds = client.time()
            return float(seconds + microseconds / 1_000_000 - time.time())

    @property
    def refusal(self) -> type[Exception]:
        """The error of a command that the server refuses, such as one that the user has no right to."""
        return self._channel.ResponseError  # type: ignore[no-any-return]

    @property
    def own_keys(self) -> str:
        """The keys beside kombu's own, as a pattern of ``ACL SETUSER``."""
        return f"~{self._channel.global_keyprefix}{PREFIX}*"

    @property
    def user(self) -> str:
        """The user of the connection."""
        return self._connection.userid or "default"

    def close(self) -> None:
        """Close the connection. The next request opens another one."""
        self._opened, self._read_all = None, -math.inf
        with contextlib.suppress(Exception):
            self._connection.collect()

    @property
    def _channel(self) -> Any:
        if self._opened is None:
            self._connection.connect()
            self._opened = self._connection.channel()
            # The messages of this channel belong to a running worker and must not be requeued when it closes.
            self._opened.do_restore = False
            lease_fetched(self._opened.qos)
        return self._opened

    def _client(self) -> AbstractContextManager[Any]:
        return self._channel.conn_or_acquire()  # type: ignore[no-any-return]


def renewed_now() -> float:
    """Return the time of a renewal: the next whole second. kombu's own time is whole once in four million."""
    return float(math.ceil(time.time()))


def lease_fetched(qos: Any) -> None:
    """Let the messages of a channel have their lease from the moment in which they are fetched."""
    acquire = qos.pipe_or_acquire

    @contextlib.contextmanager
    def leasing(*args: Any, **kwargs: Any) -> Iterator[Any]:
        with acquire(*args, **kwargs) as pipe:
            zadd = type(pipe).zadd
            pipe.zadd = lambda key, tags: zadd(pipe, key, dict.fromkeys(tags, renewed_now()))
            yield pipe

    qos.pipe_or_acquire = leasing


@contextlib.contextmanager
def temporary_index(app: Any, lease: float) -> Iterator[Index]:
    """Enter with an index for a process that is no worker, which is closed at the end.

    Raises ``BackendUnavailable`` if the broker does not answer.
    """
    with app.connection_for_read() as connection:
        index = Index(connection, lease, REPLY_TIMEOUT)
        try:
            yield index
        except (*connection.connection_errors, *connection.channel_errors) as error:
            raise BackendUnavailable(f"the broker could not be asked: {error}") from error
        finally:
            index.close()


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
