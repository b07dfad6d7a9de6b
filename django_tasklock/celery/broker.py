"""The broker of an app, as its settings and kombu have it: when messages are delivered again, and can be delayed."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

from celery.utils.quorum_queues import detect_quorum_queues
from kombu import Connection

from django_tasklock.conf import get_settings, milliseconds


def visibility_timeout(app: Any) -> float:
    """Return the seconds after which the broker delivers again what is not acknowledged; infinite where it does not."""
    conf = app.conf
    channel = getattr(_transport(conf.broker_read_url, conf.broker_transport), "Channel", None)
    usual = getattr(channel, "default_visibility_timeout", None) or getattr(channel, "visibility_timeout", None)
    if not isinstance(usual, int | float):
        return math.inf
    own = own_timeout(app)
    return float(usual) if own is None else own


def own_timeout(app: Any) -> float | None:
    """Return the seconds that the project has set as ``visibility_timeout``; ``None``: it has set none."""
    found = _options(app).get("visibility_timeout")
    return None if found is None else float(found)


def message_lease(app: Any) -> float | None:
    """Return the seconds after which a message that no worker renews is delivered again; ``None``: none is renewed.

    The project's own ``visibility_timeout``, else ``MESSAGE_LEASE``. Only kombu's Redis transport has what is to be
    renewed: RabbitMQ brings a dead worker's messages back by itself.
    """
    setting = get_settings().MESSAGE_LEASE
    if setting is None or not _is_redis(app):
        return None
    own = own_timeout(app)
    return milliseconds(setting, "MESSAGE_LEASE") / 1000 if own is None else own


def redelivery_timeout(app: Any) -> float:
    """Return the seconds after which another worker may be given what this one has, if it was stopped for so long."""
    lease = message_lease(app)
    return visibility_timeout(app) if lease is None else min(lease, visibility_timeout(app))


def shortest_countdown(app: Any) -> float:
    """Return the fewest seconds that a message can be sent away for; 0: any.

    RabbitMQ's quorum queues delay by whole seconds, and for less than one Celery raises ``ValueError``.
    """
    driver = _transport(app.conf.broker_write_url, app.conf.broker_transport).driver_type
    return 1.0 if detect_quorum_queues(app, driver)[0] else 0.0


def _is_redis(app: Any) -> bool:
    """Tell whether the app's messages go through Redis, and are kept there until they are acknowledged."""
    if not _options(app).get("ack_emulation", True):
        return False
    return bool(_transport(app.conf.broker_read_url, app.conf.broker_transport).driver_type == "redis")


def _options(app: Any) -> dict[str, Any]:
    return dict(app.conf.broker_transport_options or {})


def _transport(url: Any, transport: str | None) -> Any:
    return _transport_at(url if isinstance(url, str) else tuple(url or ()), transport)


@cache
def _transport_at(url: str | tuple[str, ...], transport: str | None) -> Any:
    """Return kombu's own answer: whoever reads the address itself misses aliases, sockets and lists."""
    address: Any = url or None
    return Connection(address, transport=transport).get_transport_cls()
