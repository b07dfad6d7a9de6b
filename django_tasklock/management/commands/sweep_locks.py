"""``manage.py sweep_locks``: find what crashed holders left behind, and repair it."""

from __future__ import annotations

import argparse
import json
from typing import Any

from django.core.management.base import CommandError, CommandParser

from django_tasklock.management.base import OperatorCommand
from django_tasklock.operations.sweep import CLASSES, PAUSE, FindingOutcome, Kind, SweepReport, sweep
from django_tasklock.texts import printable

MAX_LINES = 20
"""Findings that are shown at verbosity 1."""


class Command(OperatorCommand):
    """The command ``sweep_locks``."""

    help = (
        "Find what crashed holders left behind and repair it: expired index entries, locks without expiry, beyond"
        " their timeout, of dead processes or of finished rows, claimed rows without a live lock, and messages parked"
        " behind no lock. Everything is checked twice; what has changed meanwhile is left alone. See docs/sweep.md."
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
            type=_parse_seconds,
            metavar="SECONDS",
            help="Only locks held, entries orphaned and messages parked for at least so long."
            " Rows have no age: with this option they are left out.",
        )
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
            "--pause",
            type=_parse_pause,
            default=PAUSE,
            metavar="SECONDS",
            help="Seconds between the two checks of a finding (default: %(default)s).",
        )

    def run(self, options: dict[str, Any]) -> None:
        """Sweep, and print the report."""
        report = sweep(
            dry_run=options["dry_run"] or options["check"],
            older_than=options["older_than"],
            prefix=options["prefix"],
            models=options["models"],
            requeue=options["requeue"],
            by=self.actor(),
            pause=options["pause"],
        )
        self._write_report(report, options)
        if options["check"] and report.swept:
            raise CommandError(f"{report.swept} to be swept.", returncode=1)

    def _write_report(self, report: SweepReport, options: dict[str, Any]) -> None:
        if options["json"]:
            self.stdout.write(json.dumps(report.as_dict(), indent=2))
            for note in report.left_out:
                self.stderr.write(f"Left out: {note}.")
            return
        if options["verbosity"] == 0:
            return
        for note in report.left_out:
            self.stderr.write(self.style.NOTICE(f"Left out: {note}."))
        self._write_findings(report, options["verbosity"])
        for kind, tally in report.tallies.items():
            what, done = CLASSES[kind]
            if tally.found or options["verbosity"] > 1:
                rest = [
                    f"{number} {word}" for word, number in (("changed", tally.changed), ("kept", tally.kept)) if number
                ]
                acted = (
                    f"{tally.acted} {'would be ' if report.dry_run else ''}{done}" if kind is not Kind.DIFFERS else ""
                )
                self.stdout.write(f"{tally.found:8} {what}: {', '.join(filter(None, [acted, *rest])) or 'none'}")
        if report.published:
            self.stdout.write(f"{report.published:8} tasks published again")
        checked = ", ".join(f"{number} {what}" for what, number in report.looked_at.items() if number) or "nothing"
        if report.swept:
            text = f"{report.swept} would be swept" if report.dry_run else f"{report.swept} swept"
        else:
            text = "Nothing to sweep"
        self.stdout.write(
            self.style.SUCCESS(f"{text}; checked {checked} in {report.seconds:.1f} s ({report.rate:.0f}/s).")
        )

    def _write_findings(self, report: SweepReport, verbosity: int) -> None:
        listed = report.findings if verbosity > 1 else report.findings[:MAX_LINES]
        for finding in listed:
            if finding.came is FindingOutcome.CHANGED and verbosity < 3:
                continue
            where = printable(" ".join(filter(None, [finding.name, finding.row and f"({finding.row})"])), 600)
            style = self.style.WARNING if finding.came is FindingOutcome.KEPT else str
            holder = f" [{finding.holder}]" if verbosity > 1 and finding.holder else ""
            back = "would be put back" if report.dry_run else "put back"
            more = f"; row {back}" if finding.put_back and finding.kind is not Kind.ABANDONED else ""
            more += f"; published again as {finding.published}" if finding.published else ""
            more += f"; not published: {finding.unpublished}" if finding.unpublished else ""
            self.stdout.write(style(f"{finding.came.replace('_', ' ')}: {where}{holder}: {finding.why}{more}"))
        hidden = len(report.findings) - len(listed) + report.unlisted
        if hidden:
            self.stdout.write(f"... and {hidden} more")


def _parse_seconds(text: str) -> float:
    return _parse_number(text, 0.001)


def _parse_pause(text: str) -> float:
    return _parse_number(text, 0.0)


def _parse_number(text: str, minimum: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not minimum <= value < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds, {minimum:g} or more")
    return value
