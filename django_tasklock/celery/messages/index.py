"""The broker's index of unacknowledged messages, over a connection of our own.

kombu keeps each message that a worker has fetched in a hash, and in a sorted set when that was. Whoever looks through
the set puts back what is older than the visibility timeout. A new time is a renewal; with ``XX`` it revives nothing
that was acknowledged meanwhile. The times are those of the workers' clocks, as kombu's are: machines whose clocks
differ by more than a lease take each other's messages for abandoned.

kombu's own way to connect is used, so TLS, Sentinel, sockets and key prefixes are as the project has set them.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

MUTEX = "tasklock_message_leases_mutex"
"""The key of whoever looks for abandoned messages just now."""
CHUNK = 1000
"""Messages renewed by one command: Redis serves nobody else meanwhile."""


class Index:
    """One connection to the broker of ``connection``. For one thread at a time; any error may come out of it."""

    def __init__(self, connection: Any, lease: float, patience: float) -> None:
        options = {
            **connection.transport_options,
            "visibility_timeout": lease,
            # Whoever is killed while it looks keeps all others from looking for so long: with kombu, which now and then
            # looks, too, five minutes.
            "unacked_mutex_key": MUTEX,
            "unacked_mutex_expire": max(1, int(patience * 2)),
            "socket_timeout": patience,
            "socket_connect_timeout": patience,
        }
        self._connection = connection.clone(transport_options=options, connect_timeout=patience)
        self._channel: Any = None

    @property
    def connected(self) -> bool:
        """Whether there is a connection: the next request makes one."""
        return self._channel is not None

    def renew(self, tags: Iterable[str]) -> None:
        """Let the leases of these messages begin anew, of those that are still there."""
        with self._client() as client:
            rest = iter(tags)
            while chunk := list(islice(rest, CHUNK)):
                now = time.time()
                client.zadd(self._channel.unacked_index_key, dict.fromkeys(chunk, now), xx=True)

    def restore(self) -> None:
        """Put back into its queue each message whose lease is over, unless another worker does so now."""
        self._open()
        self._channel.qos.restore_visible(num=self._channel.unacked_restore_limit, interval=1)

    def keep(self, message: Any) -> None:
        """Write down again that this message is fetched and not acknowledged."""
        self._open()
        self._channel.qos.append(message, message.delivery_tag)

    def acknowledge(self, tag: str) -> None:
        """Remove the message."""
        self._open()
        self._channel.qos.ack(tag)

    def reject(self, tag: str, *, requeue: bool) -> None:
        """Remove the message, or put it back into its queue."""
        self._open()
        self._channel.qos.reject(tag, requeue=requeue)

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
            # kombu's client puts the prefix before the keys of those commands that kombu sends, and of no other.
            found = client.hgetall(f"{self._channel.global_keyprefix}{key}")
        return {_text(field): _text(value) for field, value in found.items()}

    def first(self, key: str, seconds: float) -> bool:
        """Tell whether nobody else has asked this for the same key within ``seconds``."""
        with self._client() as client:
            return bool(client.set(key, "1", nx=True, px=round(seconds * 1000)))

    def uptime(self) -> float | None:
        """Return the seconds for which the server has been up; ``None``: it does not tell."""
        with self._client() as client:
            try:
                return float(client.info("server")["uptime_in_seconds"])
            except (self._channel.ResponseError, KeyError):
                return None

    def ahead(self) -> float:
        """Return the seconds by which the server's clock is ahead of this machine's, give or take the way there."""
        with self._client() as client:
            seconds, microseconds = client.time()
            return float(seconds + microseconds / 1_000_000 - time.time())

    def close(self) -> None:
        """Give the connection back; the next request makes another one."""
        self._channel = None
        with contextlib.suppress(Exception):
            self._connection.collect()

    @contextlib.contextmanager
    def _client(self) -> Iterator[Any]:
        self._open()
        with self._channel.conn_or_acquire() as client:
            yield client

    def _open(self) -> None:
        if self._channel is None:
            self._connection.connect()
            self._channel = self._connection.channel()
            # What is in its hands is a worker's, which goes on with it.
            self._channel.do_restore = False


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
