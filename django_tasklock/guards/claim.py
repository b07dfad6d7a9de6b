"""``Claim``: the right to write to one row, and its conditional writes.

A claim can be used without a decorator: ``claim = Claim.take(Video, 42, guard, token)``.

Each step is a short transaction of its own, which is sent again if the database dropped the connection, see
``db.reconnect``. Inside a transaction of the caller it joins that one, which fails or commits as a whole.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from datetime import datetime
from decimal import Decimal
from functools import cached_property
from typing import Any, TypeVar

from asgiref.sync import sync_to_async
from django.apps import apps
from django.db import Error, connections, router, transaction
from django.db.models import Model, Q, QuerySet
from django.db.models.signals import post_delete

from django_tasklock import counts, signals
from django_tasklock.columns import EPOCH, TOKEN, table_model
from django_tasklock.context import none_current
from django_tasklock.db.fresh import fresh
from django_tasklock.db.reconnect import (
    PATIENCE,
    end_lost_transaction,
    errors_of,
    is_row_locked,
    repeatable,
    run_with_retries,
)
from django_tasklock.db.transactions import durable, in_callers_transaction
from django_tasklock.exceptions import GuardRejected, StaleClaim, TaskLockError
from django_tasklock.guards.guard import StateGuard, has_token_columns
from django_tasklock.guards.keys import PK, check_key, key_text
from django_tasklock.guards.writes import Change, Why, brief_waits, briefly, locked, write
from django_tasklock.host import host

logger = logging.getLogger("django_tasklock")
T = TypeVar("T")

current: ContextVar[Claim | None] = ContextVar("tasklock_claim", default=None)
"""The claim of the body that runs here."""


def current_claim() -> Claim:
    """Return the claim of the body that runs here.

    Raises ``TaskLockError`` where there is none, as in a thread that the body has started.
    """
    claim = current.get()
    if claim is None:
        raise none_current("claim", "call this inside a function decorated with model_lock")
    return claim


class Claim:
    """One worker's right to one row, from ``claim()`` on. The row has its ``token`` and ``epoch``.

    Its methods may be called in several threads at once, each of which uses its own connection.

    On a model without the two columns only the state is compared: a stale worker is refused once its successor has
    finished, not before.
    """

    releases = False
    """Whether a write closes the connection of this thread if it has opened it."""
    mark = ""
    """What an interrupted claim leaves in place of its token, so that its row is found; empty: nothing."""
    closing_patience = PATIENCE
    """For how many seconds the write is tried that ends the claim: the work is done, and nobody else can say so."""

    def __init__(self, model: type[Model], key: Any, guard: StateGuard, token: str, lookup: str = PK) -> None:
        self.model = model
        self.key = key
        self.lookup = lookup
        self.pk = key
        """The row's primary key; until it is read, ``key``."""
        self.guard = guard
        self.token = token
        self.epoch = 0
        self.taken = False
        self.using = router.db_for_write(model)
        self._state = guard.claim_as
        self._closed = False
        self._deleted = False  # the row was deleted in this process
        self._sent = False  # the claim may have been committed

    @cached_property
    def has_columns(self) -> bool:
        """Whether the model has the two columns."""
        return has_token_columns(self.model)

    @classmethod
    def take(cls, model: type[Model], key: Any, guard: StateGuard, token: str, lookup: str = PK) -> Claim:
        """Make a claim, call ``claim()`` and return it. ``key``: the primary key, or the value of the field ``lookup``.

        Raises like ``claim()``, and ``TaskLockError`` for a key that is not one of that field.
        """
        claim = cls(model, check_key(model, lookup, key, "key"), guard, token, lookup)
        claim.claim()
        return claim

    def claim(self) -> None:
        """Claim the row and commit.

        Raises ``GuardRejected`` if the row is not claimable, or another transaction does not unlock it within two
        seconds; ``TransactionOpen`` inside ``atomic()``, and ``TaskLockError`` if the guard does not fit the model.
        """
        where, values = self.guard.find_claiming_guards(self.model, self.key, self.token, self.lookup)
        self.has_columns = TOKEN in values
        connection = connections[self.using]
        claimed = Change(self.guard.field, "claimed")
        ours = not in_callers_transaction(connection)
        try:
            try:
                self._resilient(lambda again: self._claim(where, values, claimed, ours, again), within=not ours)
            except errors_of(connection) as error:
                if not is_row_locked(error):
                    raise
                # MySQL waits for a row that is not committed yet, and other transactions do not see it.
                if ours and not self._all_rows().filter(**{self.lookup: self.key}).exists():
                    raise _rejected(self.model, self.pk, None, self.guard) from error
                raise _locked(self.model, self.pk, error) from error
            self.taken = True
            self._watch_deletions()
        except BaseException as error:
            if self._sent:  # it may be committed: a time limit can come anywhere, and the row would stay claimed
                patience = self.closing_patience if isinstance(error, errors_of(connection)) else 0.0
                claimable = self._closing(self.guard.retry, self.mark)
                self._close_interrupted(claimable, "given_back", ours, patience=patience)
            raise

    def update(self, **values: Any) -> None:
        """Write to the row if it still belongs to this claim.

        The write is sent again when the database dropped the connection. One that could count twice, that is with any
        expression but ``Value`` and ``Now()``, is sent again only if it was certainly not executed; otherwise the
        database's error is raised. Columns of a parent model's table are written in the same transaction.

        Raises ``StaleClaim`` if the row belongs to a newer claim, was deleted by this process (``gone``), or is not
        found. A retry does not help.
        """
        if TOKEN in values or EPOCH in values:
            raise TypeError(f"{TOKEN} and {EPOCH} belong to the claim; update() may not write them")
        if not values.keys().isdisjoint(("pk", self.model._meta.pk.name, self.model._meta.pk.attname)):
            raise TypeError("the primary key is how the claim knows its row; update() may not write it")
        self._write(values, "updated" if self.guard.field in values else None, again=repeatable(values))

    def finish(self, *, overwrite: bool = True) -> None:
        """Write that the body succeeded, unless this process has deleted the row. Raises ``StaleClaim``.

        ``overwrite=False``: how the body has ended its row itself stands, be it by ``finish()``, ``fail()`` or
        ``give_back()``, or because the row is in the state ``done`` or ``failed`` of the guard.
        """
        self._close(self.guard.done, "done", overwrite=overwrite)

    def fail(self, *, overwrite: bool = True) -> None:
        """Write that the body failed, as ``finish`` writes that it succeeded. Raises ``StaleClaim``."""
        self._close(self.guard.failed, "failed", overwrite=overwrite)

    def give_back(self) -> None:
        """Make the row claimable again, because the body will be run again. Raises ``StaleClaim``."""
        self._close(self.guard.retry, "given_back")

    def leave(self) -> None:
        """Make the row claimable again with ``mark`` in place of the token, as its body was stopped from outside.

        Nobody knows yet whether it is run again: if not, the row is found by that. How the body has ended its row
        itself stands. Raises ``StaleClaim``.
        """
        self._close(self.guard.retry, "given_back", self.mark, overwrite=False)

    @property
    def valid(self) -> bool:
        """Whether the row belongs to this claim at this moment. It may change right after."""
        return self._resilient(lambda again: self.rows().exists())

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """Enter ``atomic()`` with the row locked and checked, and yield the row.

        The row cannot be claimed before the commit, so a stale worker cannot write to *other* tables in here either.
        Keep it short. An outer ``atomic()`` is allowed. Raises ``StaleClaim``.
        """
        state = self._state
        connection = connections[self.using]
        ours, opens = not in_callers_transaction(connection), connection.connection is None
        stack = ExitStack()
        try:
            with stack:
                row = self._resilient(lambda again: self._begin(stack), patience=PATIENCE)
                if row is not None:
                    yield row
        except BaseException:
            self._state = state  # rolled back
            if ours:
                end_lost_transaction(connection)
            raise
        finally:
            self._close_if_opened(opens)
        if row is None:  # raised outside of the transaction, so that writes of the signal's receivers are kept
            raise self._refused("transaction")

    def rows(self) -> QuerySet[Any]:
        """Return a queryset with the row if it still belongs to this claim; an empty one otherwise."""
        rows = self._all_rows().filter(pk=self.pk)
        if self.has_columns:  # closing removes the token, unless that is rolled back
            token: dict[str, Any] = {f"{TOKEN}__in": (self.token, "")} if self._closed else {TOKEN: self.token}
            return rows.filter(**token, **{EPOCH: self.epoch})
        return rows.filter(**{self.guard.field: self._state})

    async def aupdate(self, **values: Any) -> None:
        """Do what ``update`` does, for coroutines."""
        await sync_to_async(self.update)(**values)

    def _begin(self, stack: ExitStack) -> Any:
        """Enter a transaction, which ``stack`` ends, and return the locked row; ``None`` if another claim has it."""
        with ExitStack() as begun:  # a snapshot may be too old to lock the row; the next try begins with a new one
            begun.enter_context(transaction.atomic(using=self.using))
            row = locked(self.rows()).first()
            stack.push(begun.pop_all())
        return row

    def _claim(self, where: Q, values: dict[str, Any], change: Change, ours: bool, again: bool) -> None:
        what = f"claim {self.model._meta.label} {self.pk!r}"
        with brief_waits(connections[self.using]) if ours else nullcontext(), durable(self.using, what):
            claimed, row = self._claim_row(where, values, change, again)
            self._sent = claimed
        # Raised outside of the transaction, so that writes of the signal's receivers are kept.
        if not claimed:
            raise _rejected(self.model, self.pk, row, self.guard)

    def _claim_row(
        self, where: Q, values: dict[str, Any], change: Change, again: bool
    ) -> tuple[bool, dict[str, Any] | None]:
        rows_of_model = self._all_rows()
        by_key = rows_of_model.filter(**{self.lookup: self.key})
        if self.lookup != PK:
            pk = by_key.values_list("pk", flat=True).first()
            if pk is None:
                return False, None
            self.pk = pk
        rows = rows_of_model.filter(where)
        same = None if self.has_columns else rows.filter(**{self.guard.field: self._state})
        columns = [self.lookup, *filter(None, [self.guard.field]), *((TOKEN, EPOCH) if self.has_columns else ())]

        def attempt() -> tuple[bool, dict[str, Any] | None]:
            claimed = write(briefly(rows), self.pk, values, same=same, change=change)
            return claimed, by_key.values(*columns).first()

        claimed, found = attempt()
        if not claimed and found is not None and self.guard.takes(found.get(self.guard.field)):
            claimed, found = attempt()  # it may have been committed between the UPDATE and the read
        if found is not None and not claimed and again and self._sent:  # the answer to the first commit was lost
            claimed = found[TOKEN] == self.token if self.has_columns else found[self.guard.field] == self._state
            if claimed:
                change.tell(self.using)
        if found is not None and claimed:
            self._check_spelling(found[self.lookup])
            self.epoch = found.get(EPOCH, 0)
        return claimed, found

    def _check_spelling(self, stored: Any) -> None:
        """Raise ``TaskLockError`` if the row was found by another spelling of its key, which is another lock of it.

        A collation, the zone of a time and the digits of a ``Decimal`` allow that.
        """
        if isinstance(self.key, str | datetime | Decimal) and key_text(stored) != key_text(self.key):
            text = f"{self.key!r} is not how {self.model._meta.label} spells the key of its row, which has one lock"
            raise TaskLockError(f"{text}; pass the value that the row has in it: {stored!r}")

    def _close_interrupted(
        self, values: dict[str, Any], why: Why, ours: bool, *, patience: float = 0.0, overwrite: bool = True
    ) -> None:
        """Close the row after an error, or an exception of a signal handler, interrupted the claim or the closing.

        ``ours``: the caller has no transaction, so the connection, which is in an unknown state, may be closed.
        """
        try:
            if ours:
                connections[self.using].close()
            change = Change(self.guard.field, why)
            self._resilient(lambda again: self._put(values, change, overwrite=overwrite), patience=patience)
        except Exception:
            logger.exception("%s: its state could not be set to %r", self.name, values.get(self.guard.field, ""))

    def _close(self, state: Any, why: Why, mark: str = "", *, overwrite: bool = True) -> None:
        values = self._closing(state, mark)
        ours = not in_callers_transaction(connections[self.using])
        try:
            if values:
                self._write(values, why, within=not ours, patience=self.closing_patience, overwrite=overwrite)
                self._closed = True
            elif not self.valid:
                raise self._refused(self.guard.field)
        except StaleClaim as error:
            if not error.gone:  # a deleted row need not be closed, and was logged
                raise
        except (Error, TaskLockError):  # the database's own error, after a repetition
            raise
        except BaseException:  # a time limit
            if values:
                self._close_interrupted(values, why, ours, overwrite=overwrite)
            raise

    def _closing(self, state: Any, mark: str = "") -> dict[str, Any]:
        # Without a token the row does not count as claimed. Its epoch still refuses the claims before.
        return self.guard.state_values(state) | ({TOKEN: mark} if self.has_columns else {})

    def _write(
        self,
        values: dict[str, Any],
        why: Why | None,
        *,
        again: bool = True,
        within: bool | None = None,
        patience: float = PATIENCE,
        overwrite: bool = True,
    ) -> None:
        if not values:
            return
        change = None if why is None else Change(self.guard.field, why)

        def attempt(may_have_run: bool) -> bool:
            # The closing write waits briefly: it is tried again.
            if self._put(values, change, brief=within is False, overwrite=overwrite):
                return True
            written = may_have_run and self._was_written(values, overwrite)
            if written:
                self._state = values.get(self.guard.field, self._state)
            if written and change:
                change.tell(self.using)
            return written

        if not self._resilient(attempt, again=again, patience=patience, within=within):
            raise self._refused(*(field for field in values if field != TOKEN))

    def _put(
        self, values: dict[str, Any], change: Change | None, *, brief: bool = False, overwrite: bool = True
    ) -> bool:
        """Write to the row if it still belongs to this claim; return whether it does."""
        rows = self.rows()
        free = rows if overwrite else self._not_ended(rows)
        if write(briefly(free) if brief else free, self.pk, values, same=free, change=change):
            self._state = values.get(self.guard.field, self._state)
            return True
        if overwrite:
            return False
        if not self.has_columns:
            return rows.exists()
        # The body has ended its row: only the token is left to remove, if it did so by the state.
        return self._closed or write(briefly(rows) if brief else rows, self.pk, {TOKEN: ""}, same=rows)

    def _not_ended(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        """Return those of ``rows`` that the body has not ended itself; a rollback may have undone that it did."""
        if self._closed:
            rows = rows.filter(**{TOKEN: self.token}) if self.has_columns else rows.none()
        ended = [state for state in (self.guard.done, self.guard.failed) if state not in (None, self.guard.claim_as)]
        return rows.exclude(**{f"{self.guard.field}__in": ended}) if ended else rows

    def _refused(self, *attempted: str) -> StaleClaim:
        attempted = attempted or (self.guard.field or TOKEN,)
        found = self._resilient(lambda again: self._all_rows().filter(pk=self.pk).exists())
        return _gone(self, attempted) if self._deleted and not found else _stale(self, attempted, found)

    def _watch_deletions(self) -> None:
        """Learn of the row's deletion, for as long as this object lives: receivers are kept weakly."""
        table = table_model(self.model)
        for model in {self.model, *(one for one in apps.get_models() if table_model(one) is table)}:  # proxies
            post_delete.connect(self._on_delete, sender=model)

    def _on_delete(self, instance: Model, using: str, **details: Any) -> None:
        if using == self.using and instance.pk == self.pk:
            self._deleted = True

    def _all_rows(self) -> QuerySet[Any]:
        return fresh(self.model._base_manager.using(self.using))

    def _was_written(self, values: dict[str, Any], overwrite: bool) -> bool:
        """Return whether the row is as the write leaves it, whose answer was lost."""
        written = {key: values[key] for key in (self.guard.field, TOKEN) if key in values}
        if not overwrite and self.has_columns:
            written = {TOKEN: values[TOKEN]}  # the state is the body's
        if not (TOKEN in written or (written and not self.has_columns)):
            return False
        rows = self._all_rows().filter(pk=self.pk)
        return rows.filter(**written, **({EPOCH: self.epoch} if self.has_columns else {})).exists()

    def _resilient(self, step: Callable[[bool], T], **terms: Any) -> T:
        """Return ``step(may_have_run)``, see ``run_with_retries``."""
        connection = connections[self.using]
        opens = connection.connection is None
        try:
            return run_with_retries(connection, step, self.name, **terms)
        finally:
            self._close_if_opened(opens)

    def _close_if_opened(self, opened: bool) -> None:
        connection = connections[self.using]
        if opened and self.releases and not in_callers_transaction(connection):
            connection.close()

    @property
    def name(self) -> str:
        """The name of the row in messages and signals: ``videos.Video:42``."""
        return f"{self.model._meta.label}:{self.pk}"

    def __repr__(self) -> str:
        return f"<Claim {self.name}>"


def _rejected(model: type[Model], pk: Any, row: dict[str, Any] | None, guard: StateGuard) -> GuardRejected:
    """Log, signal and return the error for a row that cannot be claimed. ``row``: its values by column."""
    label = model._meta.label
    state = None if row is None else row.get(guard.field)
    reason = "missing" if row is None else "invalid_state"
    if row is None:
        text = f"there is no {label} {pk!r} to claim{_or_hidden(model)}"
    elif guard.takes(state):
        text = f"{label} {pk!r} is excluded from being claimed"
        text += f" (its {guard.field} is {state!r})" if guard.field else ""
    else:
        wanted = ", ".join(map(repr, guard.claim_from))
        text = f"{label} {pk!r} cannot be claimed: its {guard.field} is {state!r}, not one of {wanted}"
    return _not_claimed(model, pk, text, state, reason)


def _locked(model: type[Model], pk: Any, error: Exception) -> GuardRejected:
    """Log, signal and return the error for a row that another transaction has locked for too long."""
    text = f"{model._meta.label} {pk!r} cannot be claimed: another transaction holds a lock on the row ({error})"
    return _not_claimed(model, pk, text, None, "row_locked")


def _not_claimed(model: type[Model], pk: Any, text: str, state: Any, reason: str) -> GuardRejected:
    name = f"{model._meta.label}:{pk}"
    logger.info("not claimed: %s%s", text, host().asker())
    signals.send(signals.claim_rejected, name, model=model, pk=pk, state=state, reason=reason)
    return GuardRejected(text, name=name, state=state, reason=reason)


def _or_hidden(model: type[Model]) -> str:
    """Return what else may be true of a row that is not found; empty unless the model has a base manager of its own."""
    name = model._meta.base_manager.name
    return "" if name == "_base_manager" else f", or the model's base manager, {name!r}, leaves it out"


def _gone(claim: Claim, attempted: tuple[str, ...]) -> StaleClaim:
    """Log and return the error for a row that this process has deleted. Usually its body has, so it is no alert."""
    text = f"{claim.model._meta.label} {claim.pk!r} is gone; there is nothing to write {', '.join(attempted)} to"
    logger.info("%s", text)
    return StaleClaim(text, name=claim.name, gone=True)


def _stale(claim: Claim, attempted: tuple[str, ...], found: bool) -> StaleClaim:
    """Log, signal and return the error for a row of a newer claim, or one that is not ``found``.

    ``attempted``: the fields of the refused write.
    """
    label = f"{claim.model._meta.label} {claim.pk!r}"
    if found:
        text = f"{label} belongs to a newer claim than epoch {claim.epoch}"
    else:
        text = (
            f"{label} was claimed here and is not found any more: it was deleted elsewhere, or this connection may not"
            f" see it, by row-level security{_or_hidden(claim.model)}"
        )
    text += f"; refused to write {', '.join(attempted)}"
    logger.error("%s", text)
    counts.count(counts.STALE, claim.model._meta.label_lower)
    signals.send(signals.claim_stale, claim.name, model=claim.model, pk=claim.pk, attempted=attempted)
    return StaleClaim(text, name=claim.name)
