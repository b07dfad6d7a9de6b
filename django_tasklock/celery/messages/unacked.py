"""The messages that a worker has fetched and not acknowledged, as kombu's channels store them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
ATTEMPTS = 10


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


def forget_delivery(qos: Any, message: Any) -> bool:
    """Make a channel forget a message without a request to the broker. Return False if it does not have it.

    Another delivery of a message has the same tag, and is not forgotten.
    """
    tag = message.delivery_tag
    if tag in qos._dirty or qos._delivered.get(tag) is not message:
        return False
    return qos._delivered.pop(tag, None) is not None
