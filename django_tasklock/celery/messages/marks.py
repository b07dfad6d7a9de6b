"""The mark that each renewing worker leaves in the broker, and who has none.

A worker that does not renew (without this app, of an earlier version, with ``MESSAGE_LEASE`` off) has its long tasks
and its countdowns taken for a dead one's, and started a second time, by the workers that look after short leases.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from typing import Any

from django_tasklock.celery.broker import message_lease
from django_tasklock.celery.messages.index import Index
from django_tasklock.celery.messages.timeouts import period_of

KEY = "tasklock_message_leases"
"""The hash in the broker: node name to mark."""
LOOKED = "tasklock_message_leases_looked"
"""The key of whoever looks for workers without a mark just now."""
LONGEST = 24 * 3600.0
"""Seconds after its end for which the mark of a dead worker stays, for people to see."""
PATIENCE = 2.0
"""Seconds that workers have to answer, and the broker, where somebody only asks."""


@dataclass(frozen=True, slots=True)
class Mark:
    """What one worker says of its renewals. Times are those of its own clock, in seconds since 1970."""

    node: str
    """Its name, as ``celery inspect`` has it."""
    lease: float
    """Seconds after which what it does not renew is delivered again."""
    at: float
    """When it has last renewed."""
    until: float
    """When it should have renewed again, twice over."""
    messages: int = 0
    """Messages that it had fetched and not acknowledged."""
    late: float = 0.0
    """Seconds by which its worst renewal during the last hour was late."""

    @property
    def is_current(self) -> bool:
        """Whether its worker has renewed as it should."""
        return time.time() <= self.until


def write(index: Index, mark: Mark) -> None:
    """Write a worker's mark down in the broker."""
    index.write(KEY, mark.node, json.dumps(asdict(mark)))


def remove(index: Index, node: str) -> None:
    """Remove the mark of a worker that ends."""
    index.remove(KEY, [node])


def read(index: Index) -> list[Mark]:
    """Return the marks of all workers, by name; those of workers that have been dead for a day are removed."""
    found, spent = [], []
    for node, text in index.read(KEY).items():
        mark = _mark(node, text)
        if mark is None or mark.until + LONGEST < time.time():
            spent.append(node)
        else:
            found.append(mark)
    if spent:
        index.remove(KEY, spent)
    return sorted(found, key=lambda mark: mark.node)


def read_marks(app: Any) -> list[Mark]:
    """Do what ``read`` does, for whoever is no worker: over a connection for this one question. Any error may come
    out of it.
    """
    lease = message_lease(app)
    if lease is None:
        return []
    with app.connection_for_read() as connection:
        index = Index(connection, lease, PATIENCE)
        try:
            return read(index)
        finally:
            index.close()


def without_mark(app: Any, marks: list[Mark]) -> list[str]:
    """Return the names of the workers that answer a ping and have no current mark among ``marks``."""
    # Not over one of the app's pool: it would go back there with a BRPOP under way, and each child that the worker
    # forks from then on closes what is in the pool, and waits for that reply (kombu's Channel.close): for ever but one.
    with app.connection_for_write() as connection:
        answers = app.control.ping(timeout=PATIENCE, connection=connection) or []
    marked = {mark.node for mark in marks if mark.is_current}
    return sorted({node for answer in answers for node in answer} - marked)


def patience_of(lease: float) -> float:
    """Return the seconds for which a mark is current that belongs to a lease of so many."""
    return max(2 * period_of(lease), lease)


def _mark(node: str, text: str) -> Mark | None:
    """Return what a worker wrote, of this version or another one; ``None``: it cannot be read."""
    try:
        found = json.loads(text)
        known = {name: found[name] for name in Mark.__slots__ if name in found}
        return Mark(**{**known, "node": node})
    except (ValueError, TypeError, KeyError):
        return None
