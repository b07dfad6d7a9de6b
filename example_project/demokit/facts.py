"""Facts about a run that the database does not have: published messages, and the killed worker."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from celery import current_app

from videos.models import Attempt

__all__ = ["Facts"]

RECEIVED = re.compile(r"process_video\[([0-9a-f-]+)\] received")


@dataclass
class Facts:
    """Facts that are collected during the demo and read by the verdict."""

    lengths: dict[int, float] = field(default_factory=dict)
    """Duration of each upload in seconds, by video."""
    published: Counter[int] = field(default_factory=Counter)
    """Number of published messages, by video."""
    killed: str = ""
    """Name of the killed worker."""
    killed_at: datetime | None = None
    lost: list[Attempt] = field(default_factory=list)
    """Attempts that the killed worker was running."""
    back: int = 0
    """Messages of the killed worker that another worker received."""

    def lost_of(self, video_id: int) -> Attempt | None:
        """Return the attempt of this video that ended with the killed worker, if there is one."""
        return next((attempt for attempt in self.lost if attempt.video_id == video_id), None)

    def recovered_after(self, video_id: int) -> float | None:
        """Return the seconds from the kill to the next claim of a video that the killed worker had."""
        before = self.lost_of(video_id)
        if before is None or self.killed_at is None:
            return None
        after = Attempt.objects.filter(video_id=video_id, epoch__gt=before.epoch).first()
        return (after.started_at - self.killed_at).total_seconds() if after else None

    def came_back(self, dead: Path, others: Iterable[Path]) -> None:
        """Count the messages of the killed worker, running or prefetched, that other workers have received."""
        had = set(RECEIVED.findall(dead.read_text()))
        self.back = len(had & {task_id for other in others for task_id in RECEIVED.findall(other.read_text())})

    @staticmethod
    def unread() -> tuple[int, int]:
        """Return the numbers of queued messages, and of unacknowledged ones."""
        with current_app.connection_for_read() as connection:
            client = connection.default_channel.client
            return client.llen(current_app.conf.task_default_queue), client.hlen("unacked")
