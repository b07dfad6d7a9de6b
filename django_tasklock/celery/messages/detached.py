"""The messages of running tasks whose connection to the broker is lost: detached messages.

kombu returns them to their queues as it closes the connection, so they would run twice at once. Therefore the worker
keeps them: they are renewed like all others, and acknowledged over the connection of the renewals.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from django_tasklock.celery.messages.index import Index
from django_tasklock.celery.messages.unacked import forget_delivery


class Settlement(NamedTuple):
    """The acknowledgement or rejection of a detached message."""

    tag: str
    done: bool
    """Whether it is removed from the broker; otherwise it is requeued."""


class DetachedMessages:
    """The detached messages of one worker. ``on_settled`` is called when a settlement is to be sent to the broker."""

    def __init__(self, on_settled: Callable[[], object]) -> None:
        self._messages: dict[str, Any] = {}
        self._settlements: deque[Settlement] = deque()
        self._on_settled = on_settled

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def messages(self) -> list[Any]:
        """The messages themselves."""
        return list(self._messages.values())

    def hook_into(self, qos: Any, running: Callable[[], Iterable[Any]]) -> None:
        """Detach the messages of ``running`` requests when kombu is about to requeue what a channel has."""
        restore = qos.restore_unacked

        def restore_others(*args: Any, **kwargs: Any) -> Any:
            for request in running():
                self._detach(qos, request.message)
            return restore(*args, **kwargs)

        qos.restore_unacked = restore_others

    def _detach(self, qos: Any, message: Any) -> None:
        if not message.acknowledged and forget_delivery(qos, message):
            self._messages[message.delivery_tag] = message
            message.channel = SettlingChannel(self)

    def settle(self, tag: str, *, done: bool) -> None:
        """Record that a message was acknowledged or rejected, to be sent to the broker."""
        if self._messages.pop(tag, None) is not None:
            self._settlements.append(Settlement(tag, done))
            self._on_settled()

    def forget(self, message: Any) -> None:
        """Forget a message, which is another worker's."""
        if self._messages.get(tag := message.delivery_tag) is message:
            del self._messages[tag]

    def restore_entries(self, index: Index) -> None:
        """Write the messages to the broker's index again, which may have lost them."""
        for message in list(self._messages.values()):
            index.record_fetched(message)

    def send_settlements(self, index: Index) -> None:
        """Send the settlements to the broker. After an error the remaining ones are sent the next time."""
        while self._settlements:
            tag, done = self._settlements[0]
            if done:
                index.acknowledge(tag)
            else:
                index.reject(tag, requeue=True)
            self._settlements.popleft()


class SettlingChannel:
    """The channel of a detached message: it records settlements."""

    no_ack_consumers = None

    def __init__(self, detached: DetachedMessages) -> None:
        self._detached = detached

    def basic_ack(self, delivery_tag: str, multiple: bool = False) -> None:
        """Record an acknowledgement."""
        self._detached.settle(delivery_tag, done=True)

    def basic_reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Record a rejection."""
        self._detached.settle(delivery_tag, done=not requeue)

    def forget(self, message: Any) -> None:
        """Forget the message, which is another worker's."""
        self._detached.forget(message)
