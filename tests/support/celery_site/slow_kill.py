"""For ``SITE_TASKS``: a worker that, on a hard time limit, kills the child only when the test lets it.

Celery tells of the end first and kills then; this makes the time between long enough to look at.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from billiard.pool import TimeoutHandler

from tests.support.celery_site.journal import ENVIRONMENT, note

_kill = TimeoutHandler._trywaitkill


def _kill_slowly(self: Any, child: Any) -> None:
    note("killing", pid=child.pid)
    gate = Path(os.environ[ENVIRONMENT]).with_name("kill")
    ends = time.monotonic() + 60
    while not gate.exists() and time.monotonic() < ends:
        time.sleep(0.01)
    _kill(self, child)


TimeoutHandler._trywaitkill = _kill_slowly
