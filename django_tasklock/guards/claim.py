"""``Claim``: the right to write to one row, and its writes.

Works on its own too: ``claim = Claim.take(Video, 42, guard, token)``.

Every step is one short transaction of its own, sent once more if the database dropped the connection: see
``db.reconnect``. In a transaction of the caller's it joins that instead, which fails or commits as a whole.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import cached_property
from typing import Any, TypeVar

from asgiref.sync import sync_to_async
from django.core.exceptions import FieldDoesNotExist
from django.db import Error, connections, router, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import F, Model, Q, QuerySet

from django_tasklock import signals
from django_tasklock.columns import EPOCH, TOKEN
from django_tasklock.db.connections import worth_returning
from django_tasklock.db.reconnect import PATIENCE, ending, repeatable, resilient
from django_tasklock.db.transactions import HINT, durable, joined, unchanged
from django_tasklock.exceptions import GuardRejected, StaleClaim, TaskLockError, TransactionOpen
from django_tasklock.guards.guard import StateGuard, has_token_columns

logger = logging.getLogger("django_tasklock")
T = TypeVar("T")

current: ContextVar[Claim | None] = ContextVar("tasklock_claim", default=None)
"""The claim whose body runs here."""


def current_claim() -> Claim:
    """Return the claim whose body runs here. Raises ``TaskLockError`` outside of one."""
    claim = current.get()
    if claim is None:
        raise TaskLockError("no claim is current here: call this inside a function decorated with model_lock")
    return claim


class Claim:
    """One worker's right to one row, once ``claim()`` has got it; ``token`` and ``epoch`` are in the row.

    On a model without the two columns only the state is compared: a stale worker is
    refused once its successor has finished, not before.
    """

    releases: bool | None = None
    """Whether this thread's connection is closed: after the claim and every write that opened it (``True``), never
    (``False``), or after the claim if that has opened it and it is out of a pool (``None``)."""

    long = False
    """Whether the body may run for hours: with ``None`` the connection is closed after the claim then."""

    ended = False
    """Whether it was written how the body ended, as far as that can be; whoever writes it again sets it back."""

    def __init__(self, model: type[Model], pk: Any, guard: StateGuard, token: str) -> None:
        self.model = model
        self.pk = pk
        self.guard = guard
        self.token = token
        self.epoch = 0
        self.taken = False
        self.using = router.db_for_write(model)
        self._state = guard.claim_as
        self._closed = False
        self._sent = False  # a commit of the claim was under way
        self._again = False  # this step's answer was lost once

    @cached_property
    def fenced(self) -> bool:
        """Whether the model has the two columns."""
        return has_token_columns(self.model)

    @classmethod
    def take(cls, model: type[Model], pk: Any, guard: StateGuard, token: str) -> Claim:
        """Return a new claim that has the row. Raises what ``claim()`` does."""
        claim = cls(model, pk, guard, token)
        claim.claim()
        return claim

    def claim(self) -> None:
        """Claim the row, committed when this returns; see ``releases`` for this thread's database connection then.

        Raises ``GuardRejected`` if the row is not claimable, ``TransactionOpen`` inside ``atomic()``, ``TaskLockError``
        if one UPDATE cannot judge whose a row of this model is.
        """
        where, values = self.guard.claiming(self.model, self.pk, self.token)
        self.fenced = TOKEN in values
        connection = connections[self.using]
        ours = not joined(connection)
        opens = connection.connection is None
        if not ours and not connection.in_atomic_block:
            raise TransactionOpen(f"cannot {self._verb} with autocommit off: {HINT}")
        try:
            self._resilient(lambda: self._claim(where, values), within=not ours)
            self.taken = True
        except BaseException:
            if self._sent:  # committed or not: a time limit may strike anywhere, and nobody would close the row
                self._close_struck(self._closing(self.guard.retry), ours)
            raise
        finally:
            if ours and self._spares(connection, opens):
                connection.close()

    def update(self, **values: Any) -> None:
        """Write to the row, if it is still this claim's. Raises ``StaleClaim``, which no retry mends; ``gone`` if the
        row was deleted.

        Sent once more when the database dropped the connection; what might count twice then, as any expression but
        ``Value`` and ``Now()`` may, only if it cannot have been executed: else the database's error is raised. Columns
        of a parent's table are written in the same transaction.
        """
        if TOKEN in values or EPOCH in values:
            raise TypeError(f"{TOKEN} and {EPOCH} belong to the claim; update() may not write them")
        if not values.keys().isdisjoint(("pk", self.model._meta.pk.name, self.model._meta.pk.attname)):
            raise TypeError("the primary key is how the claim knows its row; update() may not write it")
        self._write(values, again=repeatable(values))

    def finish(self) -> None:
        """Write that the body succeeded; of a row that was deleted nothing is written. Raises ``StaleClaim``."""
        self._close(self.guard.done)

    def fail(self) -> None:
        """Write that the body failed. Raises ``StaleClaim``."""
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
        """Enter ``atomic()`` with the row locked and still this claim's; yields the row.

        Nobody can claim it before the commit, so no stale writer gets to *other* tables in here
        either. Keep it short. Raises ``StaleClaim``; an outer ``atomic()`` is allowed.
        """
        state = self._state
        connection = connections[self.using]
        opens = connection.connection is None
        stack = ExitStack()
        try:
            with stack if joined(connection) else ending(connection, stack):
                row = self._resilient(lambda: self._begin(stack), patience=PATIENCE)
                if row is not None:
                    yield row
        except BaseException:
            self._state = state  # rolled back
            raise
        finally:
            self._close_if_opened(opens)
        if row is None:  # said outside: what a receiver of the signal writes must not be rolled back
            raise self._refused("transaction")

    def rows(self) -> QuerySet[Any]:
        """Return the row, if it is still this claim's; else nothing."""
        rows = self._everything().filter(pk=self.pk)
        if self.fenced:  # once it was closed, if that is not rolled back, its epoch alone tells that it was the last
            token: dict[str, Any] = {f"{TOKEN}__in": (self.token, "")} if self._closed else {TOKEN: self.token}
            return rows.filter(**token, **{EPOCH: self.epoch})
        return rows.filter(**{self.guard.field: self._state})

    async def aupdate(self, **values: Any) -> None:
        """Do what ``update`` does, for coroutines."""
        await sync_to_async(self.update)(**values)

    def _begin(self, stack: ExitStack) -> Any:
        """Enter a transaction, which ``stack`` ends, and return the row, locked; ``None`` if it is another's."""
        with ExitStack() as begun:  # a snapshot may be too old to lock the row: the next try has one of its own
            begun.enter_context(transaction.atomic(using=self.using))
            rows = self.rows()
            if connections[self.using].features.has_select_for_update:
                row = rows.select_related(None).select_for_update().first()  # outer joins cannot be locked
            else:  # SQLite: a write takes the lock that counts there
                rows.update(**self._nothing)
                row = rows.first()
            stack.push(begun.pop_all())
        return row

    def _claim(self, where: Q, values: dict[str, Any]) -> None:
        with durable(self.using, self._verb):
            claimed, row = self._claim_row(where, values)
            self._sent = claimed
        # Judged outside: what a receiver of the signal writes must not be rolled back.
        if not claimed:
            raise _rejected(self.model, self.pk, row, self.guard)

    def _claim_row(self, where: Q, values: dict[str, Any]) -> tuple[bool, tuple[Any, ...] | None]:
        everything = self._everything()
        rows = everything.filter(where)
        claimed = bool(rows.update(**values))
        if not claimed and not self.fenced:
            claimed = unchanged(connections[self.using], rows.filter(**{self.guard.field: self._state}))
        row = everything.filter(pk=self.pk).values_list(self.guard.field, *([TOKEN, EPOCH] if self.fenced else []))
        found = row.first()
        if found is not None and not claimed and self._again and self._sent:  # the answer to our commit was lost
            claimed = found[1] == self.token if self.fenced else found[0] == self._state
        if found is not None and claimed and self.fenced:
            self.epoch = found[2]
        return claimed, found

    def _close_struck(self, values: dict[str, Any], ours: bool) -> None:
        """Close the row once more, if it is still open, after something struck as that was written. ``ours``: no
        transaction of the caller's goes with the connection, of which nobody knows what it is in the middle of.
        """
        try:
            if ours:
                connections[self.using].close()
            self._resilient(lambda: self.rows().update(**values))
        except Exception:
            logger.exception("%s: could not be left as %r", self.name, values.get(self.guard.field))

    def _close(self, state: Any) -> None:
        values = self._closing(state)
        ours = not joined(connections[self.using])
        try:
            self.ended = True  # whatever strikes from here on
            if values:
                self._write(values, within=not ours)
                self._closed = True
            elif not self.valid:
                raise self._refused(self.guard.field)
        except StaleClaim as error:
            if not error.gone:  # else there is nothing to close, and it was said
                raise
        except (Error, TaskLockError):  # the database's own, and it was asked twice
            raise
        except BaseException:  # a time limit
            if values:
                self._close_struck(values, ours)
            raise

    def _closing(self, state: Any) -> dict[str, Any]:
        # Without the token nobody takes the row for one that is worked on; its epoch still refuses who had it before.
        return ({} if state is None else {self.guard.field: state}) | ({TOKEN: ""} if self.fenced else {})

    def _write(self, values: dict[str, Any], *, again: bool = True, within: bool | None = None) -> None:
        if not values:
            return

        inherited = {name: value for name, value in values.items() if self._is_inherited(name)}
        own = {name: value for name, value in values.items() if name not in inherited}

        def write() -> bool:
            if inherited:
                return self._write_inherited(own or self._nothing, inherited)
            rows = self.rows()
            return bool(rows.update(**own)) or unchanged(connections[self.using], rows) or self._wrote(own)

        if not self._resilient(write, again=again, patience=PATIENCE, within=within):
            raise self._refused(*(field for field in values if field != TOKEN))
        if self.guard.field in values:
            self._state = values[self.guard.field]

    def _refused(self, *attempted: str) -> StaleClaim:
        found = self._resilient(self._everything().filter(pk=self.pk).exists)
        return (_stale if found else _gone)(self, attempted or (self.guard.field,))

    def _write_inherited(self, own: dict[str, Any], inherited: dict[str, Any]) -> bool:
        # A parent's columns Django writes in a statement of their own, by the key alone. So the row is taken first, by
        # a write that is conditional, and is nobody else's before the commit.
        with transaction.atomic(using=self.using):
            rows = self.rows()
            if not rows.update(**own) and not unchanged(connections[self.using], rows):
                return False
            self._everything().filter(pk=self.pk).update(**inherited)
            return True

    def _is_inherited(self, name: str) -> bool:
        try:
            field: Any = self.model._meta.get_field(name)
        except FieldDoesNotExist:
            return False  # Django says so
        return field.concrete and field.model._meta.concrete_model is not self.model._meta.concrete_model

    @property
    def _nothing(self) -> dict[str, Any]:
        """A write that changes nothing, for the lock on the row that goes with it."""
        return {EPOCH: F(EPOCH)} if self.fenced else {self.guard.field: self._state}

    def _everything(self) -> QuerySet[Any]:
        return self.model._base_manager.using(self.using)

    def _wrote(self, values: dict[str, Any]) -> bool:
        # After a lost answer the row no longer is as the write wants to find it, but as it leaves it.
        left = {key: values[key] for key in (self.guard.field, TOKEN) if key in values}
        if not self._again or not (TOKEN in left or (left and not self.fenced)):
            return False
        rows = self._everything().filter(pk=self.pk)
        return rows.filter(**left, **({EPOCH: self.epoch} if self.fenced else {})).exists()

    def _resilient(self, step: Callable[[], T], **terms: Any) -> T:
        connection = connections[self.using]
        opens = connection.connection is None

        def attempt(tried: bool) -> T:
            self._again = tried
            return step()

        try:
            return resilient(connection, attempt, self.name, **terms)
        finally:
            self._again = False
            self._close_if_opened(opens)

    def _spares(self, connection: BaseDatabaseWrapper, opened: bool) -> bool:
        # A body of two hours must not hold a connection it does not use, whoever opened it.
        if self.releases is None and not self.long:
            return opened and worth_returning(connection, long=False)
        return self.releases is not False

    def _close_if_opened(self, opened: bool) -> None:
        connection = connections[self.using]
        if opened and self.releases and not joined(connection):
            connection.close()

    @property
    def name(self) -> str:
        """The row, for people and signals: ``videos.Video:42``."""
        return f"{self.model._meta.label}:{self.pk}"

    @property
    def _verb(self) -> str:
        return f"claim {self.model._meta.label} {self.pk!r}"


def _rejected(model: type[Model], pk: Any, row: tuple[Any, ...] | None, guard: StateGuard) -> GuardRejected:
    """Log, signal and return the error for a row that cannot be claimed; ``row`` begins with its state."""
    label = model._meta.label
    state = None if row is None else row[0]
    if row is None:
        text = f"there is no {label} {pk!r} to claim"
    elif state in guard.claim_from:
        text = f"{label} {pk!r} is excluded from being claimed (its {guard.field} is {state!r})"
    else:
        wanted = ", ".join(map(repr, guard.claim_from))
        text = f"{label} {pk!r} cannot be claimed: its {guard.field} is {state!r}, not one of {wanted}"
    logger.info("not claimed: %s", text)
    signals.send(signals.claim_rejected, f"{label}:{pk}", model=model, pk=pk, state=state)
    return GuardRejected(text, name=f"{label}:{pk}", state=state)


def _gone(claim: Claim, attempted: tuple[str, ...]) -> StaleClaim:
    """Log and return the error for a claim whose row was deleted: by its own body as a rule, so nobody is alarmed."""
    text = f"{claim.model._meta.label} {claim.pk!r} is gone; there is nothing to write {', '.join(attempted)} to"
    logger.info("%s", text)
    return StaleClaim(text, name=claim.name, gone=True)


def _stale(claim: Claim, attempted: tuple[str, ...]) -> StaleClaim:
    """Log, signal and return the error for a claim whose row is another's; ``attempted``: the fields it would write."""
    text = (
        f"{claim.model._meta.label} {claim.pk!r} belongs to a newer claim than epoch {claim.epoch};"
        f" refused to write {', '.join(attempted)}"
    )
    logger.error("%s", text)
    signals.send(signals.claim_stale, claim.name, model=claim.model, pk=claim.pk, attempted=attempted)
    return StaleClaim(text, name=claim.name)
