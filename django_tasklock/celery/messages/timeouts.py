"""For how long a message is leased, and how often that is renewed, as the project's settings have it."""

from __future__ import annotations

import math
from typing import Any

from django_tasklock.celery.message import visibility_timeout
from django_tasklock.conf import get_settings, milliseconds

RENEWALS = 4
"""Renewals in one lease, so that three may fail."""
SHORTEST = 1.0
"""Seconds between two renewals at the least: a message whose lease is shorter than three of them is not safe."""
LONGEST = 60 / RENEWALS
"""Seconds between two renewals at the most: a worker with a shorter lease may look after the same broker."""
FEWEST = 3
"""Renewals that a lease must be long enough for."""


def message_lease(app: Any) -> float | None:
    """Return the seconds after which a message that no worker renews is delivered again; ``None``: none is renewed.

    The project's own ``visibility_timeout``, else ``MESSAGE_LEASE``. Only kombu's Redis transport has what is to be
    renewed: RabbitMQ brings a dead worker's messages back by itself.
    """
    setting = get_settings().MESSAGE_LEASE
    if setting is None or not is_redis(app):
        return None
    own = own_timeout(app)
    return milliseconds(setting, "MESSAGE_LEASE") / 1000 if own is None else own


def own_timeout(app: Any) -> float | None:
    """Return the seconds that the project has set as ``visibility_timeout``; ``None``: it has set none."""
    found = _options(app).get("visibility_timeout")
    return None if found is None else float(found)


def is_redis(app: Any) -> bool:
    """Tell whether the app's messages go through Redis, and are kept there until they are acknowledged."""
    if math.isinf(visibility_timeout(app)) or not _options(app).get("ack_emulation", True):
        return False
    transport = app.connection_for_read().get_transport_cls()
    return bool(getattr(transport, "driver_type", None) == "redis")


def period_of(lease: float) -> float:
    """Return the seconds between two renewals of a lease of so many."""
    return max(SHORTEST, min(lease / RENEWALS, LONGEST))


def shortest_lease() -> float:
    """Return the shortest lease, in seconds, that is renewed often enough."""
    return FEWEST * SHORTEST


def _options(app: Any) -> dict[str, Any]:
    return dict(app.conf.broker_transport_options or {})
