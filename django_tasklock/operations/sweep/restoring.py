"""Put a row back into a claimable state, and publish its task again in the same transaction."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from django.db import DatabaseError, Error, OperationalError, router
from django.db.models import Model

from django_tasklock.backends import get_backend
from django_tasklock.db.reconnect import is_row_locked
from django_tasklock.db.transactions import durable
from django_tasklock.exceptions import TaskLockError
from django_tasklock.guards.guard import Guarded, StateGuard, has_token_columns, reset_unclaimed, revoke_claim
from django_tasklock.guards.rows import Row
from django_tasklock.locks.holder import holder_json
from django_tasklock.operations.sweep.guards import claimable_state
from django_tasklock.types import AcquireRequest, Grant

logger = logging.getLogger("django_tasklock")

BRIEF_LEASE = 3000
"""Milliseconds after which locks that the sweep takes briefly expire by themselves."""


class RestoreResult(NamedTuple):
    """The result for one row. ``done``: it was restored; ``why``: why it was not."""

    done: bool
    published: str = ""
    unpublished: str = ""
    why: str = ""


class RowRestorer:
    """Restores rows for one sweep."""

    def __init__(self, requeue: bool) -> None:
        from django_tasklock.celery.republish import Publisher

        self.requeue = requeue
        self.publisher = Publisher()

    def choose_publishable(self, guards: list[Guarded]) -> tuple[Guarded | None, str]:
        """Return the guard whose task is to be published, or the reason why none is; both empty if not requested."""
        if not self.requeue:
            return None, ""
        tasks = {id(self.publisher.task_of(one.locked)): one for one in guards if self.publisher.task_of(one.locked)}
        if len(tasks) > 1:
            names = sorted(self.publisher.task_of(one.locked).name for one in tasks.values())
            return None, f"it may have been claimed by any of {', '.join(names)}"
        one = next(iter(tasks.values()), guards[0])
        why = self.publisher.obstacle(one.locked, one.pk)
        return (None, why) if why else (one, "")

    def preview(self, model: type[Model], guards: list[Guarded]) -> RestoreResult:
        """Return the expected result of ``restore``, as far as it is known beforehand."""
        one, why = self.choose_publishable(guards)
        has_token = has_token_columns(model)
        if not has_token and claimable_state(guards[0].guard, has_token, published=one is not None) is None:
            return RestoreResult(False, unpublished=why, why=_INDISTINGUISHABLE)
        return RestoreResult(True, unpublished=why)

    def restore(
        self, model: type[Model], row: Row, token: str, guards: list[Guarded], *, free_locks: Sequence[str] = ()
    ) -> RestoreResult:
        """Restore the row if it is still claimed with ``token``, and publish its task again if that is requested.

        A row that was read without a token is restored if it still has none, and is in its guard's claimed state.
        ``free_locks``: the row's locks, which are free. If the row has no token they are held briefly, so that no
        worker claims the row between the check and the UPDATE.

        The message is sent before the commit and is run after it, so a sweep that is killed in between leaves no row
        without a message: at worst a surplus message, which the lock and the guard refuse.
        """
        one, why = self.choose_publishable(guards)
        guard = (one or guards[0]).guard
        state = claimable_state(guard, has_token_columns(model), published=one is not None)
        if state is None and not has_token_columns(model):
            return RestoreResult(False, unpublished=why, why=_INDISTINGUISHABLE)
        try:
            if free_locks and not has_token_columns(model):
                with acquire_briefly(free_locks) as acquired:
                    return (
                        self._restore(model, row, token, one, guard, state, why) if acquired else RestoreResult(False)
                    )
            return self._restore(model, row, token, one, guard, state, why)
        except OperationalError as error:
            if not is_row_locked(error):
                raise
            return RestoreResult(False, unpublished=why, why="another transaction holds a lock on it")
        except DatabaseError as error:  # a constraint of the project's own, such as one waiting row per user; a trigger
            return RestoreResult(False, unpublished=why, why=f"the database refuses the state {state!r}: {error}")

    def _restore(
        self, model: type[Model], row: Row, token: str, one: Guarded | None, guard: StateGuard, state: Any, why: str
    ) -> RestoreResult:
        if one is None:
            return RestoreResult(self._revoke(model, row, guard, token, state), unpublished=why)
        key = row.key_for(one)
        due = 0.0
        message_id = ""
        try:
            with durable(router.db_for_write(model), f"put {model._meta.label} {row.pk!r} back"):
                if not self._revoke(model, row, guard, token, state):
                    return RestoreResult(False)
                message_id, due = self.publisher.publish(one.locked, one.pk, key)
        except (Error, TaskLockError):
            raise  # of the database or the store: trying other rows would fail as well
        except Exception as error:
            logger.warning(
                "%s %r: its task was not published, so the row stays as it is: %r", model._meta.label, row.pk, error
            )
            return RestoreResult(False, unpublished=str(error) or repr(error), why="its task could not be published")
        if time.monotonic() >= due:  # the message may have been run, and refused, before the commit
            message_id, _ = self.publisher.publish(one.locked, one.pk, key)
        return RestoreResult(True, published=message_id)

    @staticmethod
    def _revoke(model: type[Model], row: Row, guard: StateGuard, token: str, state: Any) -> bool:
        if row.token == "":
            return reset_unclaimed(model, row.pk, guard, state)
        return revoke_claim(model, row.pk, guard, token, state, "swept")


@contextmanager
def acquire_briefly(names: Sequence[str]) -> Iterator[bool]:
    """Acquire these locks for the block, for three seconds at most; yield whether all of them were free."""
    backend, token, taken = get_backend(), os.urandom(16).hex(), []
    try:
        for name in sorted(names):
            if not isinstance(
                backend.acquire(AcquireRequest(name, token, BRIEF_LEASE, BRIEF_LEASE, holder_json())), Grant
            ):
                break
            taken.append(name)
        yield len(taken) == len(names)
    finally:
        for name in taken:
            backend.release(name, token)


_INDISTINGUISHABLE = "its state is claimable already, and without a token nothing tells it from a row that was put back"
