"""``manage.py locks``: list locks, explain one, release it or request its release."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, get_args

from django.core.management.base import BaseCommand, CommandError, CommandParser

from django_tasklock import operations
from django_tasklock.backends.contract.queries import Query, Which
from django_tasklock.locks.info import left_in_words
from django_tasklock.management.terminal import (
    actor,
    as_command_errors,
    check_texts,
    exit_on_broken_pipe,
    format_act,
    to_plain,
)
from django_tasklock.operations.values import DEAD, LockDetail, LockView, Outcome, Result
from django_tasklock.texts import printable


class Command(BaseCommand):
    """The command ``locks``."""

    help = "List the locks that are held, explain one, release it by force, or ask its holder to release it."
    requires_system_checks = ["tasklock"]  # noqa: RUF012  # as Django writes it

    def add_arguments(self, parser: CommandParser) -> None:
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
        parser.add_argument("--task", default="", help="Only locks of this task.")
        parser.add_argument("--search", default="", metavar="TEXT", help="Only locks with this text in their names.")
        parser.add_argument("--limit", type=int, default=100, help="At most so many (default: %(default)s).")
        parser.add_argument("--json", action="store_true", help="One JSON document on stdout.")

    def handle(self, *args: Any, **options: Any) -> None:
        check_texts(options)
        acts = options["release"] is not None or options["ask"] is not None  # an empty name must not mean the list
        if acts and options["name"] is not None:
            raise CommandError("Give the lock's name once: after --release, after --ask, or alone.")
        run: Callable[[dict[str, Any]], None] = self._list
        if acts:
            run = self._act
        elif options["name"] is not None:
            run = self._explain
        with as_command_errors(), exit_on_broken_pipe(self.stdout):
            run(options)

    def _list(self, options: dict[str, Any]) -> None:
        if options["limit"] < 1:
            raise CommandError("--limit must be 1 or more.")
        dead = options["state"] == DEAD
        query = Query(
            which="live" if dead else options["state"],
            text=options["search"],
            task=options["task"],
        )
        found: list[LockView] = []
        total, offset = 0, 0
        while len(found) < options["limit"]:
            step = query._replace(offset=offset, limit=min(1000, options["limit"] - len(found)))
            page = operations.list_locks(step, dead=dead)
            found += page.locks
            total = page.total
            if page.next is None:
                break
            offset = page.next
        if options["json"]:
            self._json({"total": total, "locks": [lock_to_plain(lock) for lock in found]})
            return
        for lock in found:
            self.stdout.write(self._format_lock(lock))
        if options["verbosity"] > 0:
            self.stdout.write(f"{len(found)} shown of {total} that are {options['state'].replace('_', ' ')}.")

    def _explain(self, options: dict[str, Any]) -> None:
        detail = operations.get_lock(options["name"])
        if options["json"]:
            self._json(detail_to_plain(detail))
            return
        if detail.lock is not None:
            self.stdout.write(self._format_lock(detail.lock))
        for sentence in detail.explanation:
            self.stdout.write(str(sentence))
        for waiter in operations.list_waiters(detail.name).waiters:
            self.stdout.write(f"waiting: {waiter.holder}, {waiter.waited:.0f} s")
        for message in detail.parked:
            which = f"{printable(message.task)}[{printable(message.task_id)}]"
            self.stdout.write(f"parked: {which} {message.state}, {message.waited:.0f} s")
        for act in detail.history:
            self.stdout.write(format_act(act))

    def _act(self, options: dict[str, Any]) -> None:
        common = {"by": actor("locks"), "reason": options["reason"], "fingerprint": options["fingerprint"]}
        if options["release"] is not None:
            result = operations.release_lock(options["release"], row_state=options["row_state"], **common)
        else:
            result = operations.ask_to_release(options["ask"], **common)
        if options["json"]:
            self._json(result_to_plain(result))
        elif result and options["verbosity"] > 0:
            self.stdout.write(self.style.SUCCESS(describe_result(result)))
        if not result:
            raise CommandError(describe_result(result))

    def _format_lock(self, lock: LockView) -> str:
        info = lock.info
        parts = [
            self.style.ERROR("dead") if lock.dead else str(lock.state.replace("_", " ")),
            info.holder,
            f"held for {info.held_for:.0f} s",
            "no expiry" if info.ttl is None else f"lease ends in {info.ttl:.0f} s",
            "" if info.ttl is None or lock.dead else left_in_words(info),
        ]
        if lock.lapsed_for is not None:
            parts = ["orphaned", info.holder, f"lapsed {lock.lapsed_for:.0f} s ago"]
        if lock.instances:
            parts.append(f"on {lock.instances} instances")
        if lock.row is not None:
            parts.append(f"row {lock.row}")
        if info.waiting or lock.parked:
            parts.append(f"{info.waiting} waiting, {lock.parked} parked")
        if lock.dead:
            parts.append(self.style.ERROR("its process is dead"))
        if lock.asked_for is not None:
            parts.append("asked to give it back")
        mark = f" [{info.fingerprint}]" if info.fingerprint else ""
        return f"{info.name}: {', '.join(filter(None, parts))}{mark}"

    def _json(self, document: object) -> None:
        self.stdout.write(json.dumps(document, indent=2, default=str))


def describe_result(result: Result) -> str:
    """Return the outcome as a sentence."""
    holder = "" if result.before is None else f" {result.before.holder}"
    if result.outcome is Outcome.RELEASED:
        row = "; its row was taken from it as well" if result.fenced else ""
        runs = "Its process has ended" if result.alive is False else "Its holder goes on running"
        return f"Released {result.name!r}, which was held by{holder}{row}. {runs}."
    if result.outcome is Outcome.ASKED:
        return f"Asked{holder} to give {result.name!r} back: it sees that at its next heartbeat."
    if result.outcome is Outcome.CHANGED_HANDS:
        return f"Not done: {result.name!r} changed hands, and is held by{holder} now."
    return f"Not done: {result.name!r} is free."


def result_to_plain(result: Result) -> dict[str, Any]:
    """Convert the result of an action for JSON."""
    holder = None if result.before is None else result.before.holder
    return {**to_plain(result, "name outcome alive"), "holder": holder, "row_fenced": result.fenced}


def lock_to_plain(lock: LockView) -> dict[str, Any]:
    """Convert a lock for JSON, with its row as one text."""
    own = to_plain(lock, "state parked row alive asked_for lapsed_for")
    return {**lock.info, **own, "row": None if lock.row is None else str(lock.row)}


def detail_to_plain(detail: LockDetail) -> dict[str, Any]:
    """Convert all that is known about a name for JSON."""
    row = None
    if detail.row is not None:
        known = to_plain(detail.row, "exists field state fingerprint epoch fenced agrees")
        row = {"row": str(detail.row.ref), **known}
    return {
        "name": detail.name,
        "lock": None if detail.lock is None else lock_to_plain(detail.lock),
        "explanation": detail.explanation,
        "row": row,
        "parked": [to_plain(message, "task task_id state mode waited") for message in detail.parked],
        "history": [
            {"at": act.at.isoformat(), **to_plain(act, "actor action reason outcome")} for act in detail.history
        ],
    }
