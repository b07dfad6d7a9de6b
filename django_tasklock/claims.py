"""``Claim``: the right to write to one row, and its writes.

Works on its own too: ``claim = Claim.take(Video, 42, guard, token)``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from asgiref.sync import sync_to_async
from django.db import InterfaceError, OperationalError, connections, router, transaction
from django.db.models import F, Model, QuerySet

from django_tasklock import signals
from django_tasklock.exceptions import StaleClaim, TransactionOpen
from django_tasklock.guards import EPOCH, TOKEN, StateGuard, fenced, rejected

__all__ = ["Claim"]

logger = logging.getLogger("django_tasklock")
T = TypeVar("T")


class Claim:
    """One worker's right to one row. Made by ``take``; ``token`` and ``epoch`` are in the row.

    On a model without the two columns only the state is compared: a stale worker is
    refused once its successor has finished, not before.
    """

    def __init__(self, model: type[Model], pk: Any, guard: StateGuard, token: str, epoch: int, using: str) -> None:
        self.model = model
        self.pk = pk
        self.guard = guard
        self.token = token
        self.epoch = epoch
        self.using = using
        self.fenced = fenced(model)
        self._state = guard.claim_as

    @classmethod
    def take(cls, model: type[Model], pk: Any, guard: StateGuard, token: str) -> Claim:
        """Claim the row, committed when this returns; the database connection is let go.

        Raises ``GuardRejected`` if the row is not claimable, ``TransactionOpen`` inside ``atomic()``.
        """
        using = router.db_for_write(model)
        claim = cls(model, pk, guard, token, 0, using)
        try:
            claim._resilient(claim._claim)
        finally:
            let_go(using)
        return claim

    def update(self, **values: Any) -> None:
        """Write to the row, if it is still this claim's. Raises ``StaleClaim``, which no retry mends."""
        self._write(values)

    def finish(self) -> None:
        """The closing write of a success. Raises ``StaleClaim``."""
        self._close(self.guard.done)

    def fail(self) -> None:
        """The closing write of a failure. Raises ``StaleClaim``."""
        self._close(self.guard.failed)

    def give_back(self) -> None:
        """Put the row back into a claimable state: the body will be run again. Raises ``StaleClaim``."""
        self._close(self.guard.retry)

    @property
    def valid(self) -> bool:
        """Whether the row is this claim's now: a look, not a promise."""
        return self._resilient(lambda: self.rows().exists())

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """``atomic()`` in which the row is locked and still this claim's; yields the row.

        Nobody can claim it before the commit, so writes to *other* tables in here are fenced
        too. Keep it short. Raises ``StaleClaim``; an outer ``atomic()`` is allowed.
        """
        connection = connections[self.using]
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()
        with transaction.atomic(using=self.using):
            rows = self.rows()
            if connection.features.has_select_for_update:
                row = rows.select_for_update().first()
            else:  # SQLite: a write takes the lock that counts there
                key = {EPOCH: F(EPOCH)} if self.fenced else {self.guard.field: self._state}
                row = rows.first() if rows.update(**key) else None
            if row is None:
                raise self._stale(("transaction",))
            yield row

    def rows(self) -> QuerySet[Any]:
        """The row, if it is still this claim's; else nothing."""
        rows = self.model._base_manager.using(self.using).filter(pk=self.pk)
        if self.fenced:
            return rows.filter(**{TOKEN: self.token, EPOCH: self.epoch})
        return rows.filter(**{self.guard.field: self._state})

    async def aupdate(self, **values: Any) -> None:
        """``update`` for coroutines."""
        await sync_to_async(self.update)(**values)

    def _claim(self) -> None:
        with durable(self.using, f"claim {self.model._meta.label} {self.pk!r}"):
            self._claim_row()

    def _claim_row(self) -> None:
        everything = self.model._base_manager.using(self.using)
        mine = {TOKEN: self.token} if self.fenced else {}
        claimed = everything.filter(self.guard.claimable(self.pk)).update(**self.guard.claiming(self.model, self.token))
        found = everything.filter(pk=self.pk).values_list(self.guard.field, *([TOKEN, EPOCH] if self.fenced else []))
        row = found.first()
        # A claim whose commit was answered by a broken connection is found to be ours on the second try.
        if row is None or (not claimed and not (mine and row[1] == self.token)):
            raise rejected(self.model, self.pk, row and row[0], self.guard)
        if self.fenced:
            if row[1] != self.token:
                raise self._stale((self.guard.field,))
            self.epoch = row[2]

    def _close(self, state: Any) -> None:
        if state is not None:
            self._write({self.guard.field: state})
        elif not self.valid:
            raise self._stale((self.guard.field,))

    def _write(self, values: dict[str, Any]) -> None:
        if not values:
            return
        if TOKEN in values or EPOCH in values:
            raise TypeError(f"{TOKEN} and {EPOCH} belong to the claim; update() may not write them")

        def write() -> bool:
            # Zero rows may also mean that nothing changed (MySQL without FOUND_ROWS): then the row is there.
            return bool(self.rows().update(**values)) or self.rows().exists() or self._wrote(values)

        connection = connections[self.using]
        if not (write() if connection.in_atomic_block else self._resilient(write)):
            raise self._stale(tuple(values))
        if self.guard.field in values:
            self._state = values[self.guard.field]

    def _wrote(self, values: dict[str, Any]) -> bool:
        # State only: after a lost answer the row no longer is in the old state, but in the new one.
        if self.fenced or self.guard.field not in values or not self._resent:
            return False
        rows = self.model._base_manager.using(self.using).filter(pk=self.pk)
        return rows.filter(**{self.guard.field: values[self.guard.field]}).exists()

    _resent = False

    def _resilient(self, step: Callable[[], T]) -> T:
        """Run ``step`` in autocommit, once more on a new connection if the server dropped the old one."""
        connection = connections[self.using]
        if connection.in_atomic_block:  # a TestCase's own
            return step()
        connection.close_if_unusable_or_obsolete()
        try:
            return step()
        except (OperationalError, InterfaceError) as error:
            logger.warning("claim on %s %r: the database dropped us (%s), trying once more", self.model._meta.label, self.pk, error)
            connection.close()
            self._resent = True
            return step()
        finally:
            self._resent = False

    def _stale(self, attempted: tuple[str, ...]) -> StaleClaim:
        label = self.model._meta.label
        text = f"{label} {self.pk!r} belongs to a newer claim; refused to write {', '.join(attempted)} (epoch {self.epoch})"
        logger.error("%s", text)
        signals.send(signals.claim_stale, f"{label}:{self.pk}", model=self.model, pk=self.pk, attempted=attempted)
        return StaleClaim(text, name=f"{label}:{self.pk}")


@contextmanager
def durable(using: str, what: str) -> Iterator[None]:
    """``atomic(durable=True)``, with ``TransactionOpen`` saying why ``what`` cannot be done in an open transaction.

    ``TestCase``, which wraps each test in a transaction of its own, is let through.
    """
    hint = (
        "others would not see it until commit. Do it outside atomic(): publish the task with delay_on_commit, "
        "exempt the view from ATOMIC_REQUESTS, or do not run tasks eagerly inside a transaction"
    )
    connection = connections[using]
    if not connection.in_atomic_block and not connection.get_autocommit():
        raise TransactionOpen(f"cannot {what} with autocommit off: {hint}")
    block = transaction.atomic(using=using, durable=True)
    try:
        block.__enter__()
    except RuntimeError as error:
        raise TransactionOpen(f"cannot {what} inside an open transaction: {hint}") from error
    try:
        yield
    except BaseException as error:
        block.__exit__(type(error), error, error.__traceback__)
        raise
    block.__exit__(None, None, None)


def let_go(using: str) -> None:
    """Give the connection back, so that a body of two hours does not hold one it does not use."""
    connection = connections[using]
    if not connection.in_atomic_block:
        connection.close()
