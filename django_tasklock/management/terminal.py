"""Shared by the commands: the actor for the audit trail, error handling, and conversion to JSON."""

from __future__ import annotations

import dataclasses
import getpass
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError, OutputWrapper
from django.db import Error
from django.utils import translation

from django_tasklock.exceptions import BackendUnavailable, TaskLockError
from django_tasklock.operations.values import Act, Actor
from django_tasklock.texts import printable

EXIT_UNAVAILABLE = 2
"""Exit code when a store is unavailable. 1: nothing was done, or an argument is invalid."""
EXIT_BROKEN_PIPE = 128 + 13  # SIGPIPE


def actor(command: str) -> Actor:
    """Return the actor for the audit trail: the command, the user and the host."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a container's user may have no name
        user = "unknown"
    return Actor(f"{command}, {user}@{socket.gethostname()}")


def format_act(act: Act) -> str:
    """Format an entry of the audit trail on one line."""
    why = f" ({printable(act.reason, 1000)})" if act.reason else ""
    return f"{act.at:%Y-%m-%d %H:%M:%S} {printable(act.actor)}: {printable(act.action)}: {printable(act.outcome)}{why}"


def to_plain(value: Any, names: str = "") -> Any:
    """Convert frozen values for JSON, recursively; ``names``: only these attributes, in this order."""
    if names:
        return {name: to_plain(getattr(value, name)) for name in names.split()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return to_plain(value._asdict())
    if isinstance(value, dict):
        return {key: to_plain(one) for key, one in value.items()}
    return [to_plain(one) for one in value] if isinstance(value, list | tuple) else value


def check_texts(options: Mapping[str, Any]) -> None:
    """Raise ``CommandError`` for an argument that is not valid UTF-8, as no name or stored text is."""
    for option, given in options.items():
        for text in given if isinstance(given, list | tuple) else (given,):
            if isinstance(text, str) and any("\ud800" <= one <= "\udfff" for one in text):
                raise CommandError(f"{option.replace('_', ' ')} is not text in UTF-8: {text!r:.120}")


@contextmanager
def exit_on_broken_pipe(stream: OutputWrapper) -> Iterator[None]:
    """Exit quietly, with the status of a process ended by SIGPIPE, when the reader has gone: ``locks | head``."""
    try:
        yield
        stream.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the rest of the buffer goes there
        raise SystemExit(EXIT_BROKEN_PIPE) from None


@contextmanager
def as_command_errors() -> Iterator[None]:
    """Use English, as commands do, and raise outages and invalid arguments as ``CommandError``."""
    try:
        with translation.override(None):
            yield
    except (BackendUnavailable, Error) as error:
        raise CommandError(str(error), returncode=EXIT_UNAVAILABLE) from error
    except (TaskLockError, ImproperlyConfigured) as error:
        raise CommandError(str(error)) from error
