"""The mark that each renewing worker leaves in the broker, by which health and metrics know what it has."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from typing import Any

from celery.app import app_or_default
from celery.loaders.app import AppLoader

from django_tasklock.celery.broker import message_lease
from django_tasklock.celery.messages.index import PREFIX, Index, temporary_index

KEY = PREFIX
"""The hash in the broker: a field for each worker, by its name and its own id, to its mark."""
RETENTION = 24 * 3600.0
"""Seconds for which an expired mark is kept, for people to see."""


@dataclass(frozen=True, slots=True)
class Mark:
    """What one worker reports of its renewals."""

    node: str
    """The worker's name, as ``celery inspect`` shows it."""
    lease: float
    """Seconds after which messages that it does not renew are redelivered."""
    at: float
    """The time of its last renewal, by its own clock, in seconds since 1970."""
    messages: int = 0
    """The number of messages that it renews."""
    stuck: int = 0
    """The number of messages that do not go on: given back by slots that hang, or of tasks that outlive their lock."""
    worker: str = ""
    """A random id, as another worker may have the same name."""

    @property
    def field(self) -> str:
        """The field of ``KEY`` where it is."""
        return f"{self.node} {self.worker}"

    @property
    def is_current(self) -> bool:
        """Whether the worker has renewed within a lease."""
        return time.time() <= self.at + self.lease


def write(index: Index, mark: Mark) -> None:
    """Write a worker's mark to the broker."""
    index.write(KEY, mark.field, json.dumps(asdict(mark)))


def remove(index: Index, mark: Mark) -> None:
    """Remove the mark of a worker that stops."""
    index.remove(KEY, [mark.field])


def read(index: Index) -> list[Mark]:
    """Return the marks of all workers, sorted by name. Those that expired more than a day ago are removed."""
    found, expired = [], []
    for field, text in index.read(KEY).items():
        mark = _mark(text)
        if mark is None or mark.at + mark.lease + RETENTION < time.time():
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


def project_app() -> Any:
    """Return the project's Celery app; ``None`` if it has none here."""
    app = app_or_default()
    return app if isinstance(app.loader, AppLoader) else None


def project_lease() -> float | None:
    """Return the lease of the project's messages in seconds; ``None`` if it has no app here, or they have none."""
    app = project_app()
    return None if app is None else message_lease(app)


def project_marks() -> list[Mark]:
    """Return the marks of the workers on the project's broker. May raise any error."""
    return read_marks(app_or_default())


def _mark(text: str) -> Mark | None:
    """Return a mark as a worker of any version wrote it; ``None`` if it cannot be read."""
    try:
        found = json.loads(text)
        return Mark(**{name: found[name] for name in Mark.__slots__ if name in found})
    except (ValueError, TypeError, KeyError):
        return None
