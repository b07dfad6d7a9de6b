"""``manage.py parked``: list the messages stored in the database; publish, requeue and discard them."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from django_tasklock import operations
from django_tasklock.management.terminal import actor, as_command_errors, check_texts, exit_on_broken_pipe, to_plain
from django_tasklock.operations.parked.listing import STATES
from django_tasklock.operations.parked.reasons import Reasons


class Command(BaseCommand):
    """The command ``parked``."""

    help = "List the messages stored in the database, publish one, requeue a dead one, or discard one."
    requires_system_checks = ["tasklock"]  # noqa: RUF012  # as Django writes it

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", nargs="?", metavar="NAME", help="Only those for this lock.")
        parser.add_argument("--state", choices=STATES, help="Only those in this state.")
        act = parser.add_mutually_exclusive_group()
        act.add_argument(
            "--requeue", nargs="+", metavar="ID", help="Let these dead messages wait for their locks again."
        )
        act.add_argument("--publish", nargs="+", metavar="ID", help="Publish these now, if it is their turn.")
        act.add_argument("--discard", nargs="+", metavar="ID", help="End these messages without running them.")
        parser.add_argument(
            "--sign", action="store_true",
            help="With --requeue: also messages without a signature. Either a worker of an older version has parked"
            " them, or another program with access to your database: check what they do first.",
        )  # fmt: skip
        parser.add_argument("--reason", default="", help="Why; for the audit trail.")
        parser.add_argument("--limit", type=int, default=100, help="Show at most so many (default: %(default)s).")
        parser.add_argument("--json", action="store_true", help="One JSON document on stdout.")

    def handle(self, *args: Any, **options: Any) -> None:
        check_texts(options)
        with as_command_errors(), exit_on_broken_pipe(self.stdout):
            if options["requeue"] or options["publish"] or options["discard"]:
                self._act(options)
            else:
                self._list(options)

    def _list(self, options: dict[str, Any]) -> None:
        from django_tasklock.celery import parked_messages

        if options["limit"] < 1:
            raise CommandError("--limit must be 1 or more.")
        found = parked_messages(options["name"], state=options["state"], limit=options["limit"])
        reasons = Reasons(found)
        if options["json"]:
            messages = [{**to_plain(one), "why": reasons.explain(one)} for one in found]
            self.stdout.write(json.dumps({"messages": messages}, indent=2, default=str))
            return
        for one in found:
            why = " ".join(reasons.explain(one))
            self.stdout.write(f"{one.name}: {one.task}[{one.task_id}] {one.state}, {one.waited:.0f} s: {why}")

    def _act(self, options: dict[str, Any]) -> None:
        failed = 0
        common = {"by": actor("parked"), "reason": options["reason"]}
        for task_id in options["requeue"] or options["publish"] or options["discard"]:
            if options["requeue"]:
                obstacle = operations.requeue_parked(task_id, sign=options["sign"], **common)
            elif options["publish"]:
                obstacle = operations.publish_parked(task_id, **common)
            else:
                obstacle = operations.discard_parked(task_id, **common)
            failed += bool(obstacle)
            if options["verbosity"] > 0 or obstacle:
                self.stdout.write(f"{task_id}: {obstacle or 'done'}")
        if failed:
            raise CommandError(f"Not done: {failed}.")
