"""``manage.py locks``: list locks, explain one, release it or request its release."""

from __future__ import annotations

from typing import Any, get_args

from django.core.management.base import CommandError, CommandParser

from django_tasklock import operations
from django_tasklock.backends.contract.lists import Query, Which
from django_tasklock.locks.info import left_in_words
from django_tasklock.management.base import OperatorCommand
from django_tasklock.operations.values import DEAD, LockView
from django_tasklock.texts import printable


class Command(OperatorCommand):
    """The command ``locks``."""

    help = "List the locks that are held, explain one, release it by force, or ask its holder to release it."

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("name", nargs="?", metavar="NAME", help="Explain this lock, held or not.")
        act = parser.add_mutually_exclusive_group()
        act.add_argument(
            "--release",
            metavar="NAME",
            help="Release this lock by force; a holder that still runs goes on, but can no longer write to a guarded"
            " row.",
        )
        act.add_argument("--ask", metavar="NAME", help="Ask the holder of this lock to release it.")
        parser.add_argument("--reason", default="", help="Why; for the audit trail.")
        parser.add_argument(
            "--fingerprint", help="Only if the lock still has the holder that was shown with this fingerprint."
        )
        parser.add_argument("--row-state", metavar="STATE", help="The state in which to leave the lock's guarded row.")
        parser.add_argument(
            "--state",
            choices=[*get_args(Which), DEAD],
            default="live",
            help="Only these locks; dead: their process has ended.",
        )
        self.add_scan(parser)
        parser.add_argument("--task", default="", help="Only locks of this task.")
        parser.add_argument("--search", default="", metavar="TEXT", help="Only locks with this text in their names.")
        parser.add_argument(
            "--limit", type=int, default=100, help="At most so many, up to 1000 (default: %(default)s)."
        )

    def run(self, options: dict[str, Any]) -> None:
        """List, explain or act. An empty name must not mean the list: that would pass for a release that was done."""
        name, release, ask = options["name"], options["release"], options["ask"]
        common = {"by": self.actor(), "reason": options["reason"], "fingerprint": options["fingerprint"]}
        if name is not None and (release is not None or ask is not None):
            raise CommandError("Give the lock's name once: after --release, after --ask, or alone.")
        if release is not None:
            self.tell(operations.release_lock(release, row_state=options["row_state"], **common), options)
        elif ask is not None:
            self.tell(operations.ask_release(ask, **common), options)
        elif name is not None:
            self._explain(options)
        else:
            self._list(options)

    def _list(self, options: dict[str, Any]) -> None:
        self.scan(options)
        dead = options["state"] == DEAD
        query = Query(
            which="live" if dead else options["state"],
            text=options["search"],
            task=options["task"],
            limit=options["limit"],
        )
        page = operations.list_locks(query, dead=dead)
        if options["json"]:
            self.write_json(page)
            return
        for lock in page.locks:
            self.stdout.write(format_lock(lock))
        if options["verbosity"] > 0:
            more = ", among those that expire first" if page.more else ""
            state = options["state"].replace("_", " ").replace("live", "held")  # dead ones are, too
            self.stdout.write(f"{len(page.locks)} shown of {page.total} that are {state}{more}.")

    def _explain(self, options: dict[str, Any]) -> None:
        detail = operations.get_lock(options["name"])
        if options["json"]:
            self.write_json(detail)
            return
        if detail.lock is not None:
            self.stdout.write(format_lock(detail.lock))
        for sentence in detail.explanation:
            self.stdout.write(sentence)
        for waiter in operations.list_waiters(detail.name).waiters:
            self.stdout.write(f"waiting: {waiter.holder}, {waiter.waited:.0f} s")
        for message in detail.parked:
            which = f"{printable(message.task)}[{printable(message.task_id)}]"
            self.stdout.write(f"parked: {which} {message.state}, {message.waited:.0f} s")
        for act in detail.history:
            self.stdout.write(str(act))


def format_lock(lock: LockView) -> str:
    """Format one lock on one line."""
    info = lock.info
    if lock.lapsed_for is not None:
        parts = ["orphaned", info.holder, f"lapsed {lock.lapsed_for:.0f} s ago"]
    else:
        parts = [
            "dead" if lock.dead else lock.state.replace("_", " "),
            info.holder,
            f"held for {info.held_for:.0f} s",
            "no expiry" if info.ttl is None else f"lease ends in {info.ttl:.0f} s",
            "" if info.ttl is None or lock.dead else left_in_words(info),
        ]
    parts += [
        f"on {lock.instances} instances" if lock.instances else "",
        f"row {lock.row}" if lock.row is not None else "",
        f"{info.waiting} waiting, {lock.parked} parked" if info.waiting or lock.parked else "",
        "its process is dead" if lock.dead else "",
        "asked to give it back" if lock.asked_for is not None else "",
    ]
    mark = f" [{info.fingerprint}]" if info.fingerprint else ""
    return f"{info.name}: {', '.join(filter(None, parts))}{mark}"
