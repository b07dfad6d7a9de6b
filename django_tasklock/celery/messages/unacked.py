"""The messages that a worker has fetched and not acknowledged, as kombu's channels store them."""

from __future__ import annotations

from typing import Any

ATTEMPTS = 10


def fetched_by(connection: Any) -> list[str]:
    """Return the delivery tags of all channels of a connection. Safe in any thread while the worker uses it."""
    channels = list(getattr(connection.transport, "channels", None) or ()) if connection.connected else []
    return [tag for channel in channels for tag in _tags_of(channel)]


def _tags_of(channel: Any) -> list[str]:
    # kombu has no public name for either. It marks an acknowledged message first, and removes it with the next message.
    qos = getattr(channel, "_qos", None)
    if qos is None:
        return []
    for _ in range(ATTEMPTS):
        try:
            done = set(qos._dirty)
            return [tag for tag in list(qos._delivered) if tag not in done]
        except RuntimeError:  # it changed during the iteration
            continue
    raise RuntimeError("the messages that the worker has change too fast to be read")


def forget_delivery(qos: Any, tag: str) -> bool:
    """Make a channel forget a message without a request to the broker. Return False if it does not have it."""
    return tag not in qos._dirty and qos._delivered.pop(tag, None) is not None
