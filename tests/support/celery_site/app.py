"""The app of a worker process: ``celery -A tests.support.celery_site.app worker``. Tests make their own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from celery.signals import worker_ready

from tests.support.celery_site.configuration import READY, Configuration

__all__ = ["app"]

app = Configuration.here().make_app()


@worker_ready.connect
def _say_so(**details: Any) -> None:
    Path(os.environ[READY]).touch()
