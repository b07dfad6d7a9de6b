"""The messages of running tasks whose connection to the broker is gone: the worker still has them.

kombu puts them back into their queues as it closes the connection, and they would run twice at once. So the worker
takes them along: they are renewed as all others are, and acknowledged over the connection of the renewals.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from django_tasklock.celery.messages.index import Index
from django_tasklock.celery.messages.unacked import take_out


class Settlement(NamedTuple):
    """Whether a message that was taken along is acknowledged or rejected."""

    tag: str
    done: bool
    """Whether it is removed from the broker; otherwise it is put back."""


class Carried:
    """Those of one worker. ``answered`` is called when the broker is to be told something."""

    def __init__(self, answered: Callable[[], object]) -> None:
        self._messages: dict[str, Any] = {}
        self._settlements: deque[Settlement] = deque()
        self._answered = answered

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def tags(self) -> list[str]:
        """Their delivery tags."""
        return list(self._messages)

    def follow(self, qos: Any, running: Callable[[], Iterable[Any]]) -> None:
        """Take the messages of ``running`` requests along when kombu is about to put back what a channel has."""
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
        """Note what became of a message, to tell the broker."""
        if self._messages.pop(tag, None) is not None:
            self._settlements.append(Settlement(tag, done))
            self._answered()

    def write_down(self, index: Index) -> None:
        """Write all of them down in the broker again: it may have lost them."""
        for message in list(self._messages.values()):
            index.keep(message)

    def tell(self, index: Index) -> None:
        """Tell the broker what became of messages. An error leaves what is not told yet to the next time."""
        while self._settlements:
            tag, done = self._settlements[0]
            if done:
                index.acknowledge(tag)
            else:
                index.reject(tag, requeue=True)
            self._settlements.popleft()


class _SettlingChannel:
    """What a message that was taken along has for its channel."""

    no_ack_consumers = None

    def __init__(self, carried: Carried) -> None:
        self._carried = carried

    def basic_ack(self, delivery_tag: str, multiple: bool = False) -> None:
        self._carried.settle(delivery_tag, done=True)

    def basic_reject(self, delivery_tag: str, requeue: bool = False) -> None:
        self._carried.settle(delivery_tag, done=not requeue)
