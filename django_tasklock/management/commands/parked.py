"""``manage.py parked``: list the messages stored in the database; publish, requeue and discard them."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from django_tasklock.management.base import OperatorCommand
from django_tasklock.operations.parked.acts import discard_parked, publish_parked, requeue_parked
from django_tasklock.operations.parked.listing import STATES, ParkedView
from django_tasklock.operations.parked.reasons import Reasons


class Command(OperatorCommand):
    """The command ``parked``."""

    help = "List the messages stored in the database, publish one, requeue a dead one, or discard one."

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("name", nargs="?", metavar="NAME", help="Only those for this lock.")
        parser.add_argument("--state", choices=STATES, help="Only those in this state.")
        act = parser.add_mutually_exclusive_group()
        act.add_argument(
            "--requeue", nargs="+", metavar="ID", help="Let these dead messages wait for their locks again."
        )
        act.add_argument("--publish", nargs="+", metavar="ID", help="Publish these now, if it is their turn.")
        act.add_argument("--discard", nargs="+", metavar="ID", help="End these messages without running them.")
        parser.add_argument("--reason", default="", help="Why; for the audit trail.")
        parser.add_argument("--limit", type=int, default=100, help="Show at most so many (default: %(default)s).")

    def run(self, options: dict[str, Any]) -> None:
        """List, or act on each message."""
        acts = {
            "requeue": requeue_parked,
            "publish": publish_parked,
            "discard": discard_parked,
        }
        action = next((name for name in acts if options[name]), None)
        if action is None:
            self._list(options)
            return
        by, reason = self.actor(), options["reason"]
        results = [acts[action](task_id, by=by, reason=reason) for task_id in options[action]]
        if options["json"]:
            self.write_json({"messages": results})
        for result in results:
            if not options["json"] and (options["verbosity"] > 0 or not result):
                self.stdout.write(str(result))
        if not all(results):
            raise CommandError(f"Not done: {sum(not result for result in results)}.")

    def _list(self, options: dict[str, Any]) -> None:
        from django_tasklock.celery import parked_messages

        if options["limit"] < 1:
            raise CommandError("--limit must be 1 or more.")
        found = parked_messages(options["name"], state=options["state"], limit=options["limit"])
        reasons = Reasons(found)
        views = [ParkedView(one, reasons.explain(one)) for one in found]
        if options["json"]:
            self.write_json({"messages": views})
            return
        for view in views:
            one, why = view.info, " ".join(view.why)
            self.stdout.write(f"{one.name}: {one.task}[{one.task_id}] {one.state}, {one.waited:.0f} s: {why}")
