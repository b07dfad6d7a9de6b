"""The databases: whether and how fast each answers, and the figures of its pool."""

from __future__ import annotations

import time
from dataclasses import asdict
from functools import partial
from typing import Any

from django.db import connections

from django_tasklock.db.pools import figures
from django_tasklock.health.probe import TIMEOUT, Probe

_probes: dict[str, Probe[float]] = {}


def check_databases(*aliases: str, timeout: float = TIMEOUT) -> dict[str, dict[str, Any]]:
    """Return the state of these databases, or of all, within ``timeout`` seconds altogether.

    ``reachable`` is the verdict. The pool's figures are those of this process, from before the request. A pool without
    a free connection does not answer in time.
    """
    found = {}
    for alias in aliases or tuple(connections):
        found[alias] = {
            "reachable": False,
            "vendor": connections[alias].vendor,
            "latency_ms": None,
            "pool": asdict(figures(alias)),
        }
        get_probe(alias).start()
    deadline = time.monotonic() + timeout
    for alias, state in found.items():
        latency = get_probe(alias).result(deadline - time.monotonic())
        if latency is not None:
            state |= {"reachable": True, "latency_ms": round(latency * 1000, 3)}
    return found


def get_probe(alias: str) -> Probe[float]:
    """Return this process's probe of the database ``alias``."""
    found = _probes.get(alias)
    if found is None:
        found = _probes.setdefault(alias, Probe(partial(measure_latency, alias), f"health-{alias}"))
    return found


def forget() -> None:
    """Discard all answers, so that the next request asks every database again."""
    _probes.clear()


def measure_latency(alias: str) -> float:
    """Return the seconds that the database takes to answer."""
    connection = connections[alias]
    connection.ensure_connection()
    began = time.monotonic()
    with connection.cursor() as cursor:  # not is_usable(): on SQLite that does not access the file
        cursor.execute("SELECT 1" + connection.features.bare_select_suffix)
        cursor.fetchone()
    return time.monotonic() - began
