"""The messages that a worker has fetched and not acknowledged, also those that no connection of it has any more.

When a worker loses its connection to the broker, kombu returns the connection's messages to their queues as it closes
it, so those of running tasks would run twice at once. Therefore they are detached: they are renewed like all others,
and acknowledged over the connection of the renewals.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

from kombu.transport.virtual import QoS

from django_tasklock.celery.messages.index import Index

T = TypeVar("T")
ATTEMPTS = 10


class Settlement(NamedTuple):
    """The acknowledgement or rejection of a detached message."""

    tag: str
    done: bool
    """Whether it is removed from the broker; otherwise it is requeued."""


class HeldMessages:
    """The messages of one worker, and the channel of its detached ones.

    ``on_settled`` is called when a settlement is to be sent to the broker.
    """

    no_ack_consumers = None

    def __init__(self, on_settled: Callable[[], object]) -> None:
        self._connection: Any = None
        self._detached: dict[str, Any] = {}
        self._settlements: deque[Settlement] = deque()
        self._on_settled = on_settled

    def use_connection(self, connection: Any, qos: Any, running: Callable[[], Iterable[Any]]) -> None:
        """Continue with a new connection of the worker; when it is closed, the messages of ``running`` are detached."""
        self._connection = connection
        restore = qos.restore_unacked

        def restore_others(*args: Any, **kwargs: Any) -> Any:
            for message in running():
                if not message.acknowledged and _remove(qos, message):
                    self._detached[message.delivery_tag] = message
                    message.channel = self
            qos._flush()
            return restore(*args, **kwargs)

        qos.restore_unacked = restore_others

    def all(self) -> list[Any]:
        """Return the messages. Safe in any thread while the worker uses its connection."""
        return [*fetched_by(self._connection), *self._detached.values()]

    def forget(self, message: Any) -> None:
        """Leave a message to other workers: nothing that happens to it here has an effect on the broker."""
        if message.channel is not self:
            _remove(message.channel.qos, message)
        elif self._detached.get(tag := message.delivery_tag) is message:
            del self._detached[tag]

    def write_again(self, index: Index) -> None:
        """Write the detached messages to the broker again, which may have lost them."""
        for message in list(self._detached.values()):
            index.record_fetched(message)

    def send_settlements(self, index: Index) -> None:
        """Send the settlements to the broker. After an error the remaining ones are sent the next time."""
        while self._settlements:
            tag, done = self._settlements[0]
            if done:
                index.acknowledge(tag)
            else:
                index.reject(tag)
            self._settlements.popleft()

    # As a channel

    def basic_ack(self, delivery_tag: str, multiple: bool = False) -> None:
        """Record an acknowledgement."""
        self._settle(delivery_tag, done=True)

    def basic_reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Record a rejection."""
        self._settle(delivery_tag, done=not requeue)

    def _settle(self, tag: str, *, done: bool) -> None:
        if self._detached.pop(tag, None) is not None:
            self._settlements.append(Settlement(tag, done))
            self._on_settled()


def fetched_by(connection: Any) -> list[Any]:
    """Return the messages of all channels of a connection. Safe in any thread while the worker uses it."""
    channels = list(getattr(connection.transport, "channels", None) or ()) if connection.connected else []
    return [message for channel in channels for message in _messages_of(channel)]


def _messages_of(channel: Any) -> list[Any]:
    # kombu has no public name for either. It marks an acknowledged message first, and removes it with the next message.
    qos = getattr(channel, "_qos", None)
    if qos is None:
        return []

    def read() -> list[Any]:
        done = set(qos._dirty)
        return [message for tag, message in list(qos._delivered.items()) if tag not in done]

    return unchanged(read)


def unchanged(read: Callable[[], T]) -> T:
    """Return what ``read`` returns about a collection that other threads change, which may break an iteration off."""
    for _ in range(ATTEMPTS):
        try:
            return read()
        except RuntimeError:  # it changed during the iteration
            continue
    raise RuntimeError("the messages that the worker has change too fast to be read")


def _remove(qos: Any, message: Any) -> bool:
    """Let a channel take a message for acknowledged, without a request to the broker. Return False if it has it not.

    Another delivery of a message has the same tag, and is not removed.
    """
    tag = message.delivery_tag
    if tag in qos._dirty or qos._delivered.get(tag) is not message:
        return False
    QoS.ack(qos, tag)
    return True
