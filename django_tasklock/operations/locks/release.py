"""Release a lock by force, or request its release from the holder.

The claim on a guarded row is revoked first: epoch + 1 and the chosen state are committed, and only then the lock is
deleted. So the next holder finds a row that it can claim, and the row refuses all further writes of the old holder,
which goes on running unless its process has ended.
"""

from __future__ import annotations

from typing import Any

from django_tasklock.backends import get_backend
from django_tasklock.db.reconnect import is_row_locked
from django_tasklock.db.transactions import durable
from django_tasklock.exceptions import TaskLockError
from django_tasklock.guards.guard import revoke_claim
from django_tasklock.locks import events
from django_tasklock.locks.holder import alive
from django_tasklock.locks.info import lock_info
from django_tasklock.names import bare_name, other_tenant, present_tenant
from django_tasklock.operations.audit import audited
from django_tasklock.operations.guarded_rows import LockedRow, find_locked_row
from django_tasklock.operations.values import Actor, Outcome, Result
from django_tasklock.texts import printable
from django_tasklock.types import Record, fingerprint as fingerprint_of


def release_lock(
    name: str, *, by: Actor, reason: str = "", fingerprint: str | None = None, row_state: Any = None
) -> Result:
    """Release the lock by force; a holder that still runs goes on, but can no longer write to its guarded row.

    ``fingerprint``: of the token that was shown; if the lock has another holder by now, nothing is done. ``row_state``:
    the state to leave the row in, one of ``RowSide.states``; by default the first.

    Raises ``BackendUnavailable``, ``TaskLockError`` for an invalid name or state, a row of another tenant, or one that
    another transaction has locked or the database keeps from having the state, and ``TransactionOpen`` inside
    ``atomic()``, because the row must be committed before the lock is deleted.
    """
    bare, record, refusal = _read_expected(name, fingerprint)
    if refusal is not None:  # a Result that is false
        return refusal
    if record is None:
        return Result(bare, Outcome.NOT_HELD)
    if record.holder.row and (tenant := other_tenant(bare)):
        raise TaskLockError(
            f"lock {bare!r} guards a row of tenant {tenant!r}, and this process looks into the tables of"
            f" {present_tenant()!r}: release it as {tenant!r}",
            name=bare,
        )
    row = find_locked_row(record)
    state = _choose_state(row, row_state, record)
    with audited(by, "release", bare, reason) as attempt:
        revoked = row is not None and _revoke_claim(row, record, state)
        row_outcome = _describe_row(row, revoked, state, record)
        attempt.partial_outcome = f"not released yet{row_outcome}" if revoked else ""
        result = delete_if_held(record, revoked)
        attempt.outcome = f"{result.outcome}{row_outcome}; held by {record.holder}"
    return result


def ask_release(name: str, *, by: Actor, reason: str = "", fingerprint: str | None = None) -> Result:
    """Request a release from the holder, which learns of it at its next heartbeat or ``ensure_held()``.

    Raises ``BackendUnavailable``, and ``TaskLockError`` for an invalid name or a holder that cannot react.
    """
    bare, record, refusal = _read_expected(name, fingerprint)
    if refusal is not None:  # a Result that is false
        return refusal
    if record is None:
        return Result(bare, Outcome.NOT_HELD)
    if not record.token:
        raise TaskLockError(
            f"lock {bare!r} was not acquired through this library, so its holder cannot be asked", name=bare
        )
    if alive(record.holder) is False:
        text = f"the process that holds lock {bare!r} has ended, so it cannot be asked: release the lock, or sweep"
        raise TaskLockError(text, name=bare)
    before = lock_info(record)
    with audited(by, "ask", bare, reason) as attempt:
        asked = get_backend().ask_release(bare, record.token)
        result = Result(bare, Outcome.ASKED, before) if asked else _failed_result(bare, record, revoked=False)
        attempt.outcome = f"{result.outcome}; held by {record.holder}"
    return result


def delete_if_held(record: Record, revoked: bool = False) -> Result:
    """Delete the lock if it still belongs to this acquisition (compare and delete)."""
    removed = get_backend().remove(record.name, record.token)
    if removed is None:
        return _failed_result(record.name, record, revoked)
    events.forced(record.name, removed)
    return Result(record.name, Outcome.RELEASED, lock_info(removed), revoked, alive(removed.holder))


def _read_expected(name: str, fingerprint: str | None) -> tuple[str, Record | None, Result | None]:
    """Return the name and the lock, and a refusal if it is not the lock that was shown."""
    bare = bare_name(name)
    record = get_backend().get(bare)
    if record is None or fingerprint is None or fingerprint_of(record.token) == fingerprint:
        return bare, record, None
    return bare, record, Result(bare, Outcome.CHANGED_HANDS, lock_info(record))


def _failed_result(name: str, record: Record, revoked: bool) -> Result:
    current = get_backend().get(name)
    if current is None:
        return Result(name, Outcome.NOT_HELD, lock_info(record), revoked)
    return Result(name, Outcome.CHANGED_HANDS, lock_info(current), revoked)


def _choose_state(row: LockedRow | None, state: Any, record: Record) -> Any:
    name = record.name
    if row is None or not row.states:
        if state is None:
            return None
        if not record.holder.row:
            raise TaskLockError(f"lock {name!r} guards no row, so none can be left {state!r}", name=name)
        if row is not None and row.guard is not None:
            raise TaskLockError(f"the row of lock {name!r} has no states, so it cannot be left {state!r}", name=name)
        unknown = f"which guard claimed the row of lock {name!r} is not known here"
        limitation = "" if row is None else ", only as it is"
        raise TaskLockError(f"{unknown}, so it cannot be left {state!r}{limitation}", name=name)
    if state is None:
        return row.states[0]
    for allowed in row.states:  # a form sends text
        if state in (allowed, str(allowed)):
            return allowed
    raise TaskLockError(f"row_state must be one of {', '.join(map(repr, row.states))}, not {state!r}", name=name)


def _describe_row(row: LockedRow | None, revoked: bool, state: Any, record: Record) -> str:
    """Return what was done to the row, as text for the audit trail."""
    if row is None:
        row_text = printable(record.holder.row)
        return f", {row_text} not fenced: no guard of it is known here" if row_text else ""
    if not revoked:
        return ""
    end_state = "fenced, left in the state it had: no guard of it is known here"
    if row.guard is not None:
        end_state = f"left {state!r}" if row.guard.field else "fenced"
    return f", {row.model._meta.label} {row.pk} {end_state}"


def _revoke_claim(row: LockedRow, record: Record, state: Any) -> bool:
    from django.db import DatabaseError, OperationalError, router

    try:
        with durable(router.db_for_write(row.model), f"release {record.name!r}"):
            return revoke_claim(row.model, row.pk, row.guard, record.token, state, "forced")
    except OperationalError as error:
        if not is_row_locked(error):
            raise
        text = (
            f"lock {record.name!r} was not released: another transaction holds a lock on {row.model._meta.label}"
            f" {row.pk!r}. Try again when that transaction has ended, or end it in the database"
        )
        raise TaskLockError(text, name=record.name) from error
    except DatabaseError as error:  # a constraint of the project's own, or a trigger
        text = (
            f"lock {record.name!r} was not released: the database refuses to leave {row.model._meta.label} {row.pk!r}"
            f" {state!r} ({error}). Choose another state for it"
        )
        raise TaskLockError(text, name=record.name) from error
