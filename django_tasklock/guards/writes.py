"""Writing to a guarded row: its claim, an operator's release and the sweep all do it here.

A write waits for a row that another transaction has locked. By default PostgreSQL waits for as long as that transaction
is open, and MySQL for 50 seconds; SQLite waits for the ``timeout`` of its settings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, Literal, NoReturn

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import BooleanField, F, Field, Func, Model, QuerySet
from django.db.models.base import ModelState

from django_tasklock import signals
from django_tasklock.columns import EPOCH, TOKEN, table_model
from django_tasklock.db.fresh import fresh
from django_tasklock.db.reconnect import errors_of
from django_tasklock.db.transactions import in_callers_transaction

Why = Literal["claimed", "done", "failed", "given_back", "updated", "forced", "swept"]
"""Why the state of a row was written."""
LOCK_WAIT = 2
"""Seconds that a claim, or one attempt of another write, waits for a row lock. MySQL takes whole seconds."""


class Change:
    """A write of a row's state, which is told by the signal ``state_changed`` once it is committed."""

    def __init__(self, field: str | None, why: Why) -> None:
        self.field = field or ""  # a name that no row has
        self.why = why
        self._seen: tuple[type[Model], dict[str, Any], dict[str, Any]] | None = None

    def read(self, rows: QuerySet[Any]) -> dict[str, Any] | None:
        """Return key, state and epoch of the row, as far as it has them; ``None`` if it is not in ``rows``."""
        columns = {self.field, EPOCH} & {field.name for field in _fields(rows.model)}
        found: dict[str, Any] | None = rows.values("pk", *columns).first()
        return found

    def made(self, before: dict[str, Any], row: QuerySet[Any]) -> None:
        """Note what it was before and is now, and tell it after the commit."""
        self._seen = (row.model, before, self.read(row) or before)
        self.tell(row.db)

    def tell(self, using: str) -> None:
        """Tell after the commit what was noted; also if the answer to the write was lost, once it is known."""
        transaction.on_commit(self._send, using=using, robust=True)

    def _send(self) -> None:
        if self._seen is None:
            return
        model, before, after = self._seen
        signals.send(
            signals.state_changed,
            f"{model._meta.label}:{after['pk']}",
            model=model,
            pk=after["pk"],
            old_state=before.get(self.field),
            new_state=after.get(self.field),
            epoch=after.get(EPOCH),
            why=self.why,
        )


def write(
    rows: QuerySet[Any],
    pk: Any,
    values: Mapping[str, Any],
    *,
    same: QuerySet[Any] | None = None,
    change: Change | None = None,
) -> bool:
    """Write ``values`` to the row ``pk`` if it is in ``rows``, with those that ``save()`` sets by itself; return
    whether it was.

    It is one UPDATE under the conditions of ``rows``. Columns of a parent model's table are written in the same
    transaction. ``same``: the row if it has the values already, for a database that does not count it then.
    ``change``: what to tell the receivers of ``state_changed`` after the commit, if there are any.
    """
    model, using = rows.model, rows.db
    inherited = {name for field in _fields(model) if not _is_own(model, field) for name in (field.name, field.attname)}
    values = {**_set_by_save(model, pk, values), **values}
    own = {name: value for name, value in values.items() if name not in inherited}
    above = {name: value for name, value in values.items() if name in inherited}
    row = fresh(model._base_manager.using(using)).filter(pk=pk)
    if not signals.state_changed.receivers:
        change = None
    # Django writes the columns of a parent's table in a separate statement, conditional on the key alone. So the
    # conditional write comes first and locks the row: it cannot be claimed before the commit.
    with transaction.atomic(using=using) if above or change else nullcontext():
        before = change.read(locked(rows)) if change else None
        if change and before is None:
            return False
        written = bool(rows.update(**(own or no_change(model))))
        written = written or (same is not None and unchanged(connections[using], same))
        if written and above:
            row.update(**above)
        if written and change and before:
            change.made(before, row)
    return written


def locked(rows: QuerySet[Any]) -> QuerySet[Any]:
    """Return ``rows``, which are locked from the moment they are read, or from now on, until the transaction ends."""
    features = connections[rows.db].features
    if features.has_select_for_update:
        rows = rows.select_related(None)  # outer joins cannot be locked
        return rows.select_for_update(no_key=features.has_select_for_no_key_update)
    rows.update(**no_change(rows.model))  # on SQLite a write acquires the lock
    return rows


def no_change(model: type[Model]) -> dict[str, Any]:
    """Return a write to a row that changes nothing, which locks it."""
    name = next(field.name for field in _fields(model) if _is_own(model, field))
    return {name: F(name)}


def _set_by_save(model: type[Model], pk: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what ``save()`` sets by itself, whatever the instance says: columns with ``auto_now``, and the like.

    A field that asks the instance, such as a counter of versions, is left alone.
    """

    def ask(**details: Any) -> NoReturn:
        raise _Asked

    blank = model.__new__(model)  # without __init__(), which may ask as well
    vars(blank).update({"_state": ModelState(), model._meta.pk.attname: pk})
    vars(blank).update(refresh_from_db=ask)  # by which Django loads a missing field
    blank._state.adding = False
    found: dict[str, Any] = {}
    for field in _fields(model):
        plain = type(field).pre_save is Field.pre_save
        if plain or not {field.name, field.attname}.isdisjoint((TOKEN, EPOCH, *values)):
            continue
        try:
            found[field.name] = field.pre_save(blank, False)
        except (_Asked, AttributeError):
            continue
    return found


class _Asked(Exception):
    """A field asked for a value of the instance."""


def _fields(model: type[Model]) -> Iterator[Any]:
    """Yield the fields that ``save()`` writes to an existing row."""
    return (field for field in model._meta.concrete_fields if not (field.primary_key or field.generated))


def _is_own(model: type[Model], field: Any) -> bool:
    return table_model(field.model) is table_model(model)


class _SetLockTimeout(Func):
    """A ``SET LOCAL lock_timeout`` that takes no round trip: a condition of the UPDATE that is to wait.

    PostgreSQL evaluates it when it has found the row and before it locks it.
    """

    arity = 0
    template = f"set_config('lock_timeout', '{LOCK_WAIT}s', true) IS NOT NULL"
    output_field = BooleanField()


def briefly(rows: QuerySet[Any]) -> QuerySet[Any]:
    """Return ``rows`` so that their ``update()`` waits for ``LOCK_WAIT`` seconds at most, on PostgreSQL.

    It applies until the end of the transaction.
    """
    return rows.filter(_SetLockTimeout()) if connections[rows.db].vendor == "postgresql" else rows


@contextmanager
def brief_waits(connection: BaseDatabaseWrapper) -> Iterator[None]:
    """Let the statements of a block wait for ``LOCK_WAIT`` seconds at most, on MySQL and MariaDB."""
    if connection.vendor != "mysql":
        yield
        return
    with connection.cursor() as cursor:
        cursor.execute(
            "SET @tasklock_wait = @@SESSION.innodb_lock_wait_timeout, SESSION innodb_lock_wait_timeout = %s",
            [LOCK_WAIT],
        )
    try:
        yield
    finally:
        if connection.connection is not None:
            with suppress(*errors_of(connection)), connection.cursor() as cursor:  # dropped: the next one has its own
                cursor.execute("SET SESSION innodb_lock_wait_timeout = @tasklock_wait")


def counts_changes(connection: BaseDatabaseWrapper) -> bool:
    """Return whether an UPDATE may return the number of rows changed, not matched: MySQL without ``FOUND_ROWS``."""
    return connection.vendor == "mysql"


def unchanged(connection: BaseDatabaseWrapper, rows: QuerySet[Any]) -> bool:
    """Return whether an UPDATE of ``rows`` that returned zero may have found rows that already had the new values.

    In an open transaction a plain read may be older than the UPDATE; so a locking read is used there.
    """
    if not counts_changes(connection):
        return False
    if in_callers_transaction(connection):
        rows = rows.select_for_update()
    return rows.values_list("pk").first() is not None
