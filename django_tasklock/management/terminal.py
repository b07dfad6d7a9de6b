"""What the commands share: who types, and how errors are told."""

from __future__ import annotations

import getpass
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError, OutputWrapper
from django.db import Error
from django.utils import translation

from django_tasklock.exceptions import BackendUnavailable, TaskLockError
from django_tasklock.operations.values import Act, Actor
from django_tasklock.texts import shown

__all__ = ["DOWN", "actor", "in_line", "speaking", "while_read"]

DOWN = 2
"""Exit code when a store does not answer. 1: nothing was done, or an argument cannot be meant."""
CLOSED = 128 + 13  # SIGPIPE


def actor(command: str) -> Actor:
    """For the audit trail: the command, and who runs it where."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a container's user need not have a name
        user = "unknown"
    return Actor(f"{command}, {user}@{socket.gethostname()}")


def in_line(act: Act) -> str:
    """One act of the audit trail on one line."""
    why = f" ({shown(act.reason, 1000)})" if act.reason else ""
    return f"{act.at:%Y-%m-%d %H:%M:%S} {shown(act.actor)}: {shown(act.action)}: {shown(act.outcome)}{why}"


@contextmanager
def while_read(stream: OutputWrapper) -> Iterator[None]:
    """End quietly, with the status of one that SIGPIPE ended, when nobody reads any more: ``locks | head``."""
    try:
        yield
        stream.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is still buffered goes there
        raise SystemExit(CLOSED) from None


@contextmanager
def speaking() -> Iterator[None]:
    """In English, as commands do; what is down or cannot be meant is told as ``CommandError``."""
    try:
        with translation.override(None):
            yield
    except (BackendUnavailable, Error) as error:
        raise CommandError(str(error), returncode=DOWN) from error
    except (TaskLockError, ImproperlyConfigured) as error:
        raise CommandError(str(error)) from error
