"""The mark that each renewing worker leaves in the broker, and the workers without one.

A worker that does not renew (without this app, of an earlier version, with ``MESSAGE_LEASE`` off) looks dead to those
that do: they requeue its long tasks and its countdowns, which are then started a second time.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from typing import Any

from django_tasklock.celery.broker import message_lease
from django_tasklock.celery.messages.index import PREFIX, Index, temporary_index
from django_tasklock.celery.messages.timeouts import period_of

KEY = PREFIX
"""The hash in the broker: a field for each worker, by its name and its own id, to its mark."""
CHECK_MUTEX = f"{PREFIX}_looked"
"""The key of the mutex for checking for workers without a mark."""
RETENTION = 24 * 3600.0
"""Seconds for which an expired mark is kept, for people to see."""
REPLY_TIMEOUT = 2.0
"""Seconds in which workers have to answer a ping."""


@dataclass(frozen=True, slots=True)
class Mark:
    """What one worker reports of its renewals. Times are those of its own clock, in seconds since 1970."""

    node: str
    """The worker's name, as ``celery inspect`` shows it."""
    lease: float
    """Seconds after which messages that it does not renew are redelivered."""
    at: float
    """The time of its last renewal."""
    until: float
    """The time until which the mark is current: two renewal periods, and at least a lease, after the last renewal."""
    messages: int = 0
    """The number of messages that it had fetched and not acknowledged."""
    late: float = 0.0
    """Seconds by which the worst renewal of the last hour was late."""
    stuck: int = 0
    """The number of messages that it has given back, as its slots, or their own tasks, do not go on."""
    worker: str = ""
    """A random id, as another worker may have the same name."""

    @property
    def field(self) -> str:
        """The field of ``KEY`` where it is."""
        return f"{self.node} {self.worker}"

    @property
    def is_current(self) -> bool:
        """Whether the worker has renewed in time."""
        return time.time() <= self.until


def write(index: Index, mark: Mark) -> None:
    """Write a worker's mark to the broker."""
    index.write(KEY, mark.field, json.dumps(asdict(mark)))


def remove(index: Index, mark: Mark) -> None:
    """Remove the mark of a worker that stops."""
    index.remove(KEY, [mark.field])


def read(index: Index) -> list[Mark]:
    """Return the marks of all workers, sorted by name. Marks that expired more than a day ago are removed, as are those
    whose worker was started again under its name.
    """
    known = {field: _mark(text) for field, text in index.read(KEY).items()}
    running = {mark.node for mark in known.values() if mark is not None and mark.is_current}
    found, expired = [], []
    for field, mark in known.items():
        if mark is None or mark.until + (0 if mark.node in running else RETENTION) < time.time():
            expired.append(field)
        else:
            found.append(mark)
    if expired:
        index.remove(KEY, expired)
    return sorted(found, key=lambda mark: mark.node)


def read_marks(app: Any) -> list[Mark]:
    """Return the marks over a temporary connection, for processes that are no workers. May raise any error."""
    lease = message_lease(app)
    if lease is None:
        return []
    with temporary_index(app, lease) as index:
        return read(index)


def without_mark(app: Any, marks: list[Mark]) -> list[str]:
    """Return the names of the workers that answer a ping and have no current mark among ``marks``."""
    # Not over a connection of the app's pool: it would return there with a BRPOP pending, and each child that the
    # worker forks later closes the pool and waits for that reply (kombu's Channel.close), all but one for ever.
    with app.connection_for_write() as connection:
        answers = app.control.ping(timeout=REPLY_TIMEOUT, connection=connection) or []
    marked = {mark.node for mark in marks if mark.is_current}
    return sorted({node for answer in answers for node in answer} - marked)


def validity_of(lease: float) -> float:
    """Return the seconds for which a mark is current, for this lease in seconds."""
    return max(2 * period_of(lease), lease)


def _mark(text: str) -> Mark | None:
    """Return a mark as a worker of any version wrote it; ``None`` if it cannot be read."""
    try:
        found = json.loads(text)
        return Mark(**{name: found[name] for name in Mark.__slots__ if name in found})
    except (ValueError, TypeError, KeyError):
        return None
