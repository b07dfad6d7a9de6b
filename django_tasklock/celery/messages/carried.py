"""The messages of running tasks whose connection to the broker is lost, while the worker still runs them.

kombu returns them to their queues as it closes the connection, so they would run twice at once. Therefore the worker
keeps them: they are renewed like all others, and acknowledged over the connection of the renewals.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from django_tasklock.celery.messages.index import Index
from django_tasklock.celery.messages.unacked import take_out


class Settlement(NamedTuple):
    """The acknowledgement or rejection of a kept message."""

    tag: str
    done: bool
    """Whether it is removed from the broker; otherwise it is requeued."""


class Carried:
    """The messages that one worker keeps. ``answered`` is called when a settlement is to be sent to the broker."""

    def __init__(self, answered: Callable[[], object]) -> None:
        self._messages: dict[str, Any] = {}
        self._settlements: deque[Settlement] = deque()
        self._answered = answered

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def tags(self) -> list[str]:
        """The delivery tags of the kept messages."""
        return list(self._messages)

    def follow(self, qos: Any, running: Callable[[], Iterable[Any]]) -> None:
        """Keep the messages of ``running`` requests when kombu is about to requeue what a channel has."""
        restore = qos.restore_unacked

        def restore_others(*given: Any, **named: Any) -> Any:
            for request in running():
                self._take(qos, request.message)
            return restore(*given, **named)

        qos.restore_unacked = restore_others

    def _take(self, qos: Any, message: Any) -> None:
        if not message.acknowledged and take_out(qos, message.delivery_tag):
            self._messages[message.delivery_tag] = message
            message.channel = _SettlingChannel(self)

    def settle(self, tag: str, *, done: bool) -> None:
        """Record that a message was acknowledged or rejected, to be sent to the broker."""
        if self._messages.pop(tag, None) is not None:
            self._settlements.append(Settlement(tag, done))
            self._answered()

    def write_down(self, index: Index) -> None:
        """Write all kept messages to the broker's index again, which may have lost them."""
        for message in list(self._messages.values()):
            index.keep(message)

    def tell(self, index: Index) -> None:
        """Send the settlements to the broker. After an error the remaining ones are sent the next time."""
        while self._settlements:
            tag, done = self._settlements[0]
            if done:
                index.acknowledge(tag)
            else:
                index.reject(tag, requeue=True)
            self._settlements.popleft()


class _SettlingChannel:
    """The channel of a kept message: it records settlements."""

    no_ack_consumers = None

    def __init__(self, carried: Carried) -> None:
        self._carried = carried

    def basic_ack(self, delivery_tag: str, multiple: bool = False) -> None:
        self._carried.settle(delivery_tag, done=True)

    def basic_reject(self, delivery_tag: str, requeue: bool = False) -> None:
        self._carried.settle(delivery_tag, done=not requeue)
