"""``manage.py limits``: list limiters; reset, change or pause one, and release a permit."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.core.serializers.json import DjangoJSONEncoder

from django_tasklock import operations
from django_tasklock.management.terminal import (
    actor,
    as_command_errors,
    check_texts,
    exit_on_broken_pipe,
    format_act,
    to_plain,
)
from django_tasklock.operations.durations import format_duration
from django_tasklock.operations.limits.values import LimitOutcome, LimitResult, LimitView, PermitsView
from django_tasklock.texts import printable


class Command(BaseCommand):
    """The command ``limits``."""

    help = "List rate limits and concurrency limiters, explain one, reset, change or pause it, or release a permit."
    requires_system_checks = ["tasklock"]  # noqa: RUF012  # as Django writes it

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", nargs="?", metavar="NAME", help="Only this one, with its tenants and members.")
        act = parser.add_mutually_exclusive_group()
        act.add_argument("--reset", action="store_true", help="Delete the usage and the reservations of NAME.")
        act.add_argument(
            "--share", type=float, help="Enforce only this share of the limit of NAME: 0.5 is half of it, 1 all."
        )
        act.add_argument(
            "--pause", type=float, metavar="SECONDS", help="Let no call pass for so long; waiters keep their turn."
        )
        act.add_argument("--resume", action="store_true", help="End the pause of NAME, whatever its origin.")
        act.add_argument("--release", metavar="FINGERPRINT", help="Release the permit of NAME that this member has.")
        parser.add_argument("--reason", default="", help="Why; for the audit trail.")
        parser.add_argument("--search", default="", metavar="TEXT", help="Only those with this text in their names.")
        parser.add_argument("--limit", type=int, default=100, help="At most so many, up to 200 (default: %(default)s).")
        parser.add_argument("--json", action="store_true", help="One JSON document on stdout.")

    def handle(self, *args: Any, **options: Any) -> None:
        check_texts(options)
        given = any(options[act] is not None for act in ("share", "pause", "release"))
        acts = given or options["reset"] or options["resume"]
        if acts and options["name"] is None:
            raise CommandError("Give the name of the limiter.")
        run: Callable[[dict[str, Any]], None] = self._list
        if acts:
            run = self._act
        elif options["name"] is not None:
            run = self._explain
        with as_command_errors(), exit_on_broken_pipe(self.stdout):
            run(options)

    def _list(self, options: dict[str, Any]) -> None:
        limits = operations.list_limits(options["search"], limit=options["limit"])
        permits = operations.list_permits(options["search"], limit=options["limit"])
        if options["json"]:
            found = {"total": limits.total, "limits": limits.limits, "concurrency": permits.limiters}
            self._json({key: to_plain(value) for key, value in found.items()})
            return
        for view in limits.limits:
            self.stdout.write(format_limit(view))
        for limiter in permits.limiters:
            self.stdout.write(format_permits(limiter))
        if options["verbosity"] > 0:
            self.stdout.write(f"{len(limits.limits)} shown of {limits.total} rate limits.")

    def _explain(self, options: dict[str, Any]) -> None:
        detail = operations.get_limit(options["name"])
        if detail.limit is None and detail.permits is None:
            raise CommandError(f"No limiter {detail.name!r} is known.")
        if options["json"]:
            self._json(to_plain(detail))
            return
        for view in (detail.limit, *detail.tenants):
            if view is not None:
                self.stdout.write(format_limit(view))
        if detail.permits is not None:
            self.stdout.write(format_permits(detail.permits))
            for member in detail.permits.members:
                left = "until it is released" if member.without_timeout else f"{format_duration(member.time_left)} left"
                self.stdout.write(
                    f"  {member.fingerprint} {member.holder}, for {format_duration(member.held_for)}, {left}"
                )
        for act in detail.history:
            self.stdout.write(format_act(act))

    def _act(self, options: dict[str, Any]) -> None:
        name, common = options["name"], {"by": actor("limits"), "reason": options["reason"]}
        if options["reset"]:
            result = operations.reset_limit(name, **common)
        elif options["resume"]:
            result = operations.resume_limit(name, **common)
        elif options["pause"] is not None:
            result = operations.pause_limit(name, options["pause"], **common)
        elif options["release"] is not None:
            result = operations.release_permit(name, options["release"], **common)
        else:
            result = operations.change_limit(name, options["share"], **common)
        if options["json"]:
            self._json(to_plain(result))
        elif result and options["verbosity"] > 0:
            self.stdout.write(self.style.SUCCESS(describe_result(result)))
        if not result:
            raise CommandError(describe_result(result))

    def _json(self, data: Any) -> None:
        self.stdout.write(json.dumps(data, cls=DjangoJSONEncoder, ensure_ascii=False, indent=2))


def format_limit(view: LimitView) -> str:
    """Format one rate limit on one line."""
    if view.usage is None:
        return f"{printable(view.name)}  {view.state}"
    windows = ", ".join(f"{one.rate}: {one.used} of {one.limit}, {one.ahead} ahead" for one in view.usage.windows)
    more = f"  paused for {format_duration(view.usage.paused)}" if view.usage.paused else ""
    more += f"  {view.usage.share:.0%} in force" if view.usage.share < 1 else ""
    more += f"  {view.tenants} tenants" if view.tenants else ""
    return f"{printable(view.name)}  {view.state}  {windows}  {view.usage.refused} refused{more}"


def format_permits(view: PermitsView) -> str:
    """Format one concurrency limiter on one line."""
    return f"{printable(view.name)}  {view.used} of {view.limit or '?'} permits taken, {view.waiting} waiting"


def describe_result(result: LimitResult) -> str:
    """Return the outcome as a sentence."""
    return {
        LimitOutcome.RESET: f"{result.name!r} was reset.",
        LimitOutcome.CHANGED: f"{(result.share or 0) * 100:g} % of the limit {result.name!r} is in force now.",
        LimitOutcome.PAUSED: f"{result.name!r} is paused: no call starts for {format_duration(result.seconds)}.",
        LimitOutcome.RESUMED: f"{result.name!r} is not paused any more.",
        LimitOutcome.NOT_PAUSED: f"Nothing was done: {result.name!r} is not paused.",
        LimitOutcome.RELEASED: f"The permit of {result.name!r} was released.",
        LimitOutcome.UNKNOWN: f"Nothing was done: no rate limit {result.name!r} is known.",
        LimitOutcome.NOT_HELD: f"Nothing was done: that member of {result.name!r} has no permit.",
    }[result.outcome]
