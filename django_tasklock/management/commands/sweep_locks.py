"""``manage.py sweep_locks``: find what crashed holders left behind, and repair it."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from django_tasklock.management.base import OperatorCommand
from django_tasklock.operations.sweep import PAUSE, FindingOutcome, SweepReport, sweep
from django_tasklock.operations.sweep.report import ACTIONS
from django_tasklock.texts import printable

MAX_LINES = 20
"""Findings that are shown at verbosity 1."""


class Command(OperatorCommand):
    """The command ``sweep_locks``."""

    help = (
        "Find what crashed holders left behind and repair it: locks of dead processes or without expiry, claimed rows"
        " without a live lock, and messages that a dead worker had fetched. Everything is checked twice; what has"
        " changed meanwhile is left alone. See docs/operate.md."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--dry-run", action="store_true", help="Report what would be done, and change nothing.")
        parser.add_argument(
            "--check",
            action="store_true",
            help="Exit with status 1 if something would be swept, and change nothing.",
        )
        parser.add_argument(
            "--older-than",
            type=float,
            metavar="SECONDS",
            help="Only locks held for at least so long. Rows have no age: with this option they are left out.",
        )
        self.add_scan(parser)
        parser.add_argument("--prefix", default="", help="Only locks whose names begin with this.")
        parser.add_argument(
            "--model",
            action="append",
            default=[],
            dest="models",
            metavar="APP.MODEL",
            help="Only rows of this guarded model, and locks that name one; may be repeated.",
        )
        parser.add_argument(
            "--requeue", action="store_true", help="Publish the task of every row that is put back again."
        )
        parser.add_argument(
            "--unclaimed",
            action="store_true",
            help="Also put back rows in a claimed state that nobody has claimed. Otherwise they are only named.",
        )
        parser.add_argument(
            "--pause",
            type=float,
            default=PAUSE,
            metavar="SECONDS",
            help="Seconds between the two checks of a finding (default: %(default)s).",
        )

    def run(self, options: dict[str, Any]) -> None:
        """Sweep, and print the report."""
        self.scan(options)
        report = sweep(
            dry_run=options["dry_run"] or options["check"],
            older_than=options["older_than"],
            prefix=options["prefix"],
            models=options["models"],
            requeue=options["requeue"],
            unclaimed=options["unclaimed"],
            by=self.actor(),
            pause=options["pause"],
        )
        if options["json"]:
            self.write_json(report)
        elif options["verbosity"] > 0:
            self._write_report(report, options["verbosity"])
        if options["check"] and report.swept:
            raise CommandError(f"{report.swept} to be swept.", returncode=1)

    def _write_report(self, report: SweepReport, verbosity: int) -> None:
        for note in report.left_out:
            self.stderr.write(self.style.NOTICE(f"Left out: {note}."))
        shown = [one for one in report.findings if one.came is not FindingOutcome.CHANGED or verbosity > 2]
        for finding in shown if verbosity > 1 else shown[:MAX_LINES]:
            holder = f" [{finding.holder}]" if verbosity > 1 and finding.holder else ""
            self.stdout.write(printable(f"{finding}{holder}", 1000))
        hidden = report.unlisted + (max(0, len(shown) - MAX_LINES) if verbosity < 2 else 0)
        if hidden:
            self.stdout.write(f"... and {hidden} more")
        for kind, tally in report.counts.items():
            if tally.found or verbosity > 1:
                done = f"{tally.acted} {'would be ' if report.dry_run else ''}{ACTIONS[kind]}"
                self.stdout.write(
                    f"{tally.found:8} {kind.label}: {done}, {tally.changed} changed, {tally.kept} left as they are"
                )
        if report.published:
            self.stdout.write(f"{report.published:8} tasks published again")
        checked = ", ".join(f"{number} {what}" for what, number in report.looked_at.items())
        self.stdout.write(self.style.SUCCESS(f"{report} Checked: {checked}, in {report.seconds:.1f} s."))
