"""What the commands share: errors with an exit code, the actor for the audit trail, results as a sentence or JSON."""

from __future__ import annotations

import getpass
import json
import socket
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import Error
from django.utils import translation

from django_tasklock.exceptions import BackendUnavailable, TaskLockError
from django_tasklock.operations import Actor, scan_locks, to_plain

EXIT_UNAVAILABLE = 2
"""Exit code when a store is unavailable. 1: nothing was done, or an argument is invalid."""


class OperatorCommand(BaseCommand):
    """A command that calls ``operations`` in ``run``, and prints in English, as Django's commands do."""

    requires_system_checks = ["tasklock"]  # noqa: RUF012  # as Django writes it

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", help="One JSON document on stdout.")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            with translation.override(None):
                self.run(options)
        except (BackendUnavailable, Error) as error:
            raise CommandError(str(error), returncode=EXIT_UNAVAILABLE) from error
        except (TaskLockError, ImproperlyConfigured) as error:
            raise CommandError(str(error)) from error

    def run(self, options: dict[str, Any]) -> None:
        """Do the work of the command."""
        raise NotImplementedError

    def actor(self) -> Actor:
        """Return the actor for the audit trail: the command, the user and the host."""
        try:
            user = getpass.getuser()
        except (OSError, KeyError):  # a container's user may have no name
            user = "unknown"
        return Actor(f"{type(self).__module__.rpartition('.')[2]}, {user}@{socket.gethostname()}")

    def write_json(self, value: Any) -> None:
        """Print a value of ``operations``, or a dict of such values."""
        self.stdout.write(json.dumps(to_plain(value), ensure_ascii=False, indent=2))

    def add_scan(self, parser: CommandParser) -> None:
        """Add the option ``--scan``."""
        parser.add_argument(
            "--scan",
            action="store_true",
            help="First look through all keys of the Redis database for locks that other code has set.",
        )

    def scan(self, options: dict[str, Any]) -> None:
        """Take up locks that other code has set, if ``--scan`` says so."""
        if options["scan"]:
            found = scan_locks()
            if options["verbosity"] > 0:
                self.stderr.write(self.style.NOTICE(f"Locks that other code has set and no list had: {found}."))

    def tell(self, result: Any, options: dict[str, Any]) -> None:
        """Print the result of an action; raise ``CommandError`` if nothing was done."""
        if options["json"]:
            self.write_json(result)
        elif result and options["verbosity"] > 0:
            self.stdout.write(self.style.SUCCESS(str(result)))
        if not result:
            raise CommandError(str(result))
