"""The broker of an app, by its settings and kombu: when it redelivers messages, and how they can be delayed."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

from celery.utils.quorum_queues import detect_quorum_queues
from kombu import Connection

from django_tasklock.conf import get_settings, milliseconds

HOUR = 3600.0


def visibility_timeout(app: Any) -> float:
    """Return the seconds after which the broker redelivers an unacknowledged message; infinite if it never does."""
    conf = app.conf
    channel = getattr(_transport(conf.broker_read_url, conf.broker_transport), "Channel", None)
    usual = getattr(channel, "default_visibility_timeout", None) or getattr(channel, "visibility_timeout", None)
    if not isinstance(usual, int | float):
        return math.inf
    own = _options(app).get("visibility_timeout")
    return float(usual if own is None else own)


def message_lease(app: Any) -> float | None:
    """Return the seconds after which a message that no worker renews is redelivered; ``None``: none is renewed.

    It is ``MESSAGE_LEASE``, or the ``visibility_timeout`` if that is shorter. Only kombu's Redis transport needs
    renewals: RabbitMQ returns a dead worker's messages by itself.
    """
    setting = get_settings().MESSAGE_LEASE
    if setting is None or not is_redis(app):
        return None
    return min(milliseconds(setting, "MESSAGE_LEASE") / 1000, visibility_timeout(app))


def redelivery_timeout(app: Any) -> float:
    """Return the seconds after which this worker's messages may be redelivered if it was stopped for that long."""
    lease = message_lease(app)
    return visibility_timeout(app) if lease is None else lease


def return_time(app: Any) -> float:
    """Return the seconds within which a message that was not acknowledged is in the hands of another worker.

    That is what the broker takes to notice, an hour at most by default (RabbitMQ notices at once, or when its
    ``consumer_timeout`` ends), and an hour in which all workers may be busy or down.
    """
    seconds = redelivery_timeout(app)
    return (HOUR if math.isinf(seconds) else seconds) + HOUR


def shortest_countdown(app: Any) -> float:
    """Return the shortest countdown in seconds that a message can be sent with; 0: any.

    RabbitMQ's quorum queues delay by whole seconds, and for less than one Celery raises ``ValueError``.
    """
    driver = _transport(app.conf.broker_write_url, app.conf.broker_transport).driver_type
    return 1.0 if detect_quorum_queues(app, driver)[0] else 0.0


def is_redis(app: Any) -> bool:
    """Return whether the app's messages go through Redis and stay there until they are acknowledged."""
    if not _options(app).get("ack_emulation", True):
        return False
    return bool(_transport(app.conf.broker_read_url, app.conf.broker_transport).driver_type == "redis")


def _options(app: Any) -> dict[str, Any]:
    return dict(app.conf.broker_transport_options or {})


def _transport(url: Any, transport: str | None) -> Any:
    return _transport_at(url if isinstance(url, str) else tuple(url or ()), transport)


@cache
def _transport_at(url: str | tuple[str, ...], transport: str | None) -> Any:
    """Return the transport class as kombu resolves it, with aliases, sockets and lists of addresses."""
    address: Any = url or None
    return Connection(address, transport=transport).get_transport_cls()
