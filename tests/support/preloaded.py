# ruff: noqa: E402, F401  # models can be imported once Django is set up; workers use the names
"""What a ``Worker`` begins with. Imported once, by the server that all of them are forked from, and by nobody else."""

import django

django.setup()

import asyncio
import gc
import os
import signal
import threading
import time

from django_tasklock import (
    Claim,
    LockLost,
    StaleClaim,
    TaskLock,
    TaskLockAcquireError,
    TaskLockError,
    current_claim,
    current_lock,
    model_lock,
    signals,
    task_lock,
)
from django_tasklock.backends import get_backend
from django_tasklock.locks.heartbeat import heartbeat
from tests.support.current import here
from tests.support.guards import GUARD
from tests.support.stores import eventually
from tests.testapp.models import PlainVideo, Video
