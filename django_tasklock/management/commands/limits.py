"""``manage.py limits``: list limiters; reset, change or pause one, and release a permit."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from django_tasklock.management.base import OperatorCommand
from django_tasklock.operations.durations import format_duration
from django_tasklock.operations.limits.permits import list_permits, release_permit
from django_tasklock.operations.limits.rates import (
    change_limit,
    get_limit,
    list_limits,
    pause_limit,
    reset_limit,
    resume_limit,
)
from django_tasklock.operations.limits.values import LimitView, PermitsView
from django_tasklock.texts import printable


class Command(OperatorCommand):
    """The command ``limits``."""

    help = "List rate limits and concurrency limiters, explain one, reset, change or pause it, or release a permit."

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
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

    def run(self, options: dict[str, Any]) -> None:
        """List, explain or act."""
        name, common = options["name"], {"by": self.actor(), "reason": options["reason"]}
        acts = [act for act in ("reset", "share", "pause", "resume", "release") if options[act] not in (None, False)]
        if acts and name is None:
            raise CommandError("Give the name of the limiter.")
        if options["reset"]:
            self.tell(reset_limit(name, **common), options)
        elif options["resume"]:
            self.tell(resume_limit(name, **common), options)
        elif options["share"] is not None:
            self.tell(change_limit(name, options["share"], **common), options)
        elif options["pause"] is not None:
            self.tell(pause_limit(name, options["pause"], **common), options)
        elif options["release"] is not None:
            self.tell(release_permit(name, options["release"], **common), options)
        elif name is not None:
            self._explain(options)
        else:
            self._list(options)

    def _list(self, options: dict[str, Any]) -> None:
        limits = list_limits(options["search"], limit=options["limit"])
        permits = list_permits(options["search"], limit=options["limit"])
        if options["json"]:
            self.write_json({"total": limits.total, "limits": limits.limits, "concurrency": permits.limiters})
            return
        for view in limits.limits:
            self.stdout.write(format_limit(view))
        for limiter in permits.limiters:
            self.stdout.write(format_permits(limiter))
        if options["verbosity"] > 0:
            self.stdout.write(f"{len(limits.limits)} shown of {limits.total} rate limits.")

    def _explain(self, options: dict[str, Any]) -> None:
        detail = get_limit(options["name"])
        if detail.limit is None and detail.permits is None:
            raise CommandError(f"No limiter {detail.name!r} is known.")
        if options["json"]:
            self.write_json(detail)
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
            self.stdout.write(str(act))


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
