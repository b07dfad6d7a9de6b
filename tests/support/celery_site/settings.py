"""Django's settings in a worker: those of the tests, with the lock store of the site."""

from __future__ import annotations

from tests.settings import *  # noqa: F403
from tests.support.celery_site.configuration import Configuration

TASKLOCK = Configuration.here().tasklock
