"""Why a stored message waits, in sentences."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from django.utils.translation import gettext as _, ngettext

from django_tasklock.backends import get_backend
from django_tasklock.exceptions import BackendUnavailable
from django_tasklock.locks.info import lock_info
from django_tasklock.operations.durations import format_duration
from django_tasklock.types import Record

if TYPE_CHECKING:
    from django_tasklock.celery import ParkedInfo
    from django_tasklock.models import ParkedMessage

logger = logging.getLogger("django_tasklock")

PICKUP_SECONDS = 10.0
"""Seconds within which a worker normally takes a promoted message."""


class Reasons:
    """The reasons why messages wait: two statements for all, and one or two requests per lock when needed."""

    def __init__(self, messages: Sequence[ParkedInfo]) -> None:
        from django_tasklock.celery.queue import rows as table

        waiting = [info for info in messages if info.state == "parked"]
        self._counts_before = table.count_before([info.id for info in waiting])
        self._moving = table.moving_of(sorted({info.name for info in waiting}))
        self._records: dict[str, Record | None] = {}
        self.store_down = False
        """True once the lock store was unavailable."""

    def explain(self, info: ParkedInfo) -> list[str]:
        """Return the sentences in the active language."""
        values = {"ago": format_duration(info.changed), "problem": info.problem, "n": info.attempts}
        if info.mode == "replaced":
            found = [_("A newer message has replaced it, and its result is being stored.")]
        elif info.state == "parked":
            found = self._explain_parked(info)
        elif info.state == "promoted":
            found = [_("It was put back into the broker %(ago)s ago, and no worker has taken it yet.") % values]
            if info.changed > PICKUP_SECONDS:
                found.append(_("Its queue may be long, or no worker may read it: it is put back again in a while."))
        else:
            found = [_("No worker takes it: %(problem)s") % values]
        if info.state == "parked" and info.problem:
            found.append(_("The worker that looked could not read it: %(problem)s") % values)
        elif info.state == "parked" and info.attempts:
            text = ngettext(
                "It was put back %(n)d time, and no worker took it.",
                "It was put back %(n)d times, and no worker took it.",
                info.attempts,
            )
            found.append(text % values)
        return found

    def _explain_parked(self, info: ParkedInfo) -> list[str]:
        before = self._counts_before.get(info.id, 0)
        found = []
        record = self._read_record(info.name)
        if self.store_down:
            found.append(_("The lock store cannot be reached, so the holder of its lock is not known."))
        elif record is not None:
            found.append(self._explain_holder(record))
        else:
            found += self._explain_free(info, before)
        if before and info.mode == "coalesce":
            found.append(_("When the lock is free the newest message runs, and those before it are passed over."))
        elif before:
            text = ngettext("%(n)d message is before it.", "%(n)d messages are before it.", before)
            found.append(text % {"n": before})
        elif record is not None:
            found.append(_("It is the next one."))
        return found

    def _explain_holder(self, record: Record) -> str:
        lock = lock_info(record)
        values = {"holder": lock.holder, "held": format_duration(lock.held_for)}
        return _("Its lock is held by %(holder)s, for %(held)s so far.") % values

    def _explain_free(self, info: ParkedInfo, before: int) -> list[str]:
        promoted = next(iter(self._moving.get(info.name, ())), None)
        if promoted is not None:
            return [
                _("Its lock is free, and %(message)s is on its way to take it.")
                % {"message": _describe_message(promoted)}
            ]
        if before:
            return [_("Its lock is free.")]
        if info.mode == "queue" and self._count_predecessors(info):
            return [_("Its lock is free. It waits for a message that was published before it and has not arrived yet.")]
        return [
            _(
                "Its lock is free and it is its turn: a worker puts it back within seconds; if none does, no worker of"
                " the project runs."
            )
        ]

    def _read_record(self, name: str) -> Record | None:
        if name not in self._records and not self.store_down:
            try:
                self._records[name] = get_backend().get(name)
            except BackendUnavailable as error:
                self._record_outage(error)
        return self._records.get(name)

    def _count_predecessors(self, info: ParkedInfo) -> int:
        try:
            return get_backend().count_before(info.name, info.number)
        except BackendUnavailable as error:
            self._record_outage(error)
            return 0

    def _record_outage(self, error: BackendUnavailable) -> None:
        self.store_down = True
        logger.warning("what parked messages wait for is not known: %s", error)


def _describe_message(row: ParkedMessage) -> str:
    return f"{row.task}[{row.task_id}]"
