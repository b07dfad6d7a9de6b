"""Rows that a message has left claimed when it ended for good and its process could not close them.

The process was killed, or was stopped and had to leave open whether the message comes back. A row is found by the token
of the process's lock, or by the mark that a stopped body leaves in its place. So nobody's row is closed who has claimed
it since. A guard that has states, but none for a failure, leaves its row to the sweep: nobody would see that it failed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

from django.apps import apps
from django.db import OperationalError, connections, router
from django.db.models import Model, Q

from django_tasklock.columns import TOKEN
from django_tasklock.db.forks import no_fork
from django_tasklock.db.fresh import fresh
from django_tasklock.db.reconnect import is_row_locked
from django_tasklock.decorators.rows import GuardedRow
from django_tasklock.guards.guard import StateGuard, close_failed, has_token_columns, registered
from django_tasklock.guards.rows import has_token_index
from django_tasklock.guards.writes import brief_waits

logger = logging.getLogger("django_tasklock")

PATIENCE = 15.0  # seconds to wait for a row that another transaction has locked


class Left(NamedTuple):
    """A row that may have been left, which it is while it is as ``where`` says."""

    model: type[Model]
    pk: Any
    guard: StateGuard
    where: Q


def close_rows(
    who: str, row: GuardedRow | None, tokens: Collection[str], *, had_lock: bool, given_back: bool, helpers: bool
) -> None:
    """Close what the message ``who`` has left as failed, and log it; what cannot be closed is left to the sweep.

    ``row``: the one that its task works on. ``tokens``: of its locks, and its mark. ``had_lock``: it has left the lock
    of its task, too. ``given_back``: an earlier try has begun the work, and has given the row back to this one.
    ``helpers``: its body may have left other rows.
    """
    try:
        if row is not None and _tells_failure(row.guard) and (had_lock or has_token_columns(row.model)):
            _close(who, lambda: _own(row, tokens, given_back))
        if helpers:
            _close(who, lambda: _of_helpers(tokens))
    except Exception:
        logger.exception("the rows that %s has left are left to the sweep", who)


def _close(who: str, find: Callable[[], Iterator[Left]]) -> None:
    with no_fork():
        found = list(find())
    for left in found:
        if _close_patiently(left):
            label = left.model._meta.label
            logger.warning("%s %r: failed, as %s has ended and nothing runs it again", label, left.pk, who)


def _own(row: GuardedRow, tokens: Collection[str], given_back: bool) -> Iterator[Left]:
    """Yield the row that the task works on."""
    guard, model = row.guard, row.model
    if has_token_columns(model):
        where = Q(**{f"{TOKEN}__in": tokens})
        if given_back and guard.field:
            where |= Q(**{TOKEN: "", f"{guard.field}__in": (guard.claim_as, guard.retry)})
    else:
        where = Q(**{guard.field: guard.claim_as})
    for pk in _keys(model, where & Q(**{row.lookup: row.key})):
        yield Left(model, pk, guard, where)


def _of_helpers(tokens: Collection[str]) -> Iterator[Left]:
    """Yield rows of any guard that have these tokens, if an index finds them, and it is clear how they are closed."""
    where = Q(**{f"{TOKEN}__in": tokens})
    found: dict[tuple[type[Model], Any], list[StateGuard]] = {}
    for one in registered():
        guard, model = one.guard, apps.get_model(one.model) if isinstance(one.model, str) else one.model
        if _tells_failure(guard) and has_token_columns(model) and has_token_index(model):
            state = Q(**{f"{guard.field}__in": (guard.claim_as, guard.retry)}) if guard.field else Q()
            for pk in _keys(model, where & state):
                found.setdefault((model, pk), []).append(guard)
    for (model, pk), guards in found.items():
        if len({(guard.field, guard.failed) for guard in guards}) == 1:
            yield Left(model, pk, guards[0], where)


def _tells_failure(guard: StateGuard) -> bool:
    return not guard.field or guard.failed is not None


def _keys(model: type[Model], where: Q) -> list[Any]:
    rows = fresh(model._base_manager.using(router.db_for_write(model)))
    return list(rows.filter(where).values_list("pk", flat=True))


def _close_patiently(left: Left) -> bool:
    """Close the row, also if another transaction has locked it for a while. Return whether it was still left."""
    connection, ends = connections[router.db_for_write(left.model)], time.monotonic() + PATIENCE
    while True:
        try:
            with no_fork(sqlite=connection.vendor == "sqlite"), brief_waits(connection):
                return close_failed(*left)
        except OperationalError as error:
            if not is_row_locked(error) or time.monotonic() >= ends:
                raise
