"""The state guard: the row that is worked on decides which worker may write to it.

A claim is one conditional UPDATE that moves the state and writes the lock's token and
``epoch + 1`` into the row; every later write through the claim is conditional on both.
So the last claim owns the row, and a worker that was thought dead changes nothing,
whatever happened to the lock. The epoch is raised by the database, not by the lock
store, which a flush can set back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Any, NamedTuple
from weakref import WeakSet

from django.core.exceptions import FieldDoesNotExist, FieldError, ValidationError
from django.db import router
from django.db.models import CharField, CompositePrimaryKey, Exists, F, Model, Q, TextField

from django_tasklock.columns import EPOCH, TOKEN, table_options
from django_tasklock.conf import Duration, milliseconds
from django_tasklock.db.fresh import fresh
from django_tasklock.exceptions import TaskLockError
from django_tasklock.guards.keys import PK
from django_tasklock.guards.writes import Change, Why, briefly, write

TOKEN_LENGTH = 32


class Guarded(NamedTuple):
    """A registered guard: its model (or label), and the ``function.lock`` that it is used with, if any."""

    model: type[Model] | str
    guard: StateGuard
    locked: Any = None
    pk: str = "pk"
    """The argument with the row's key."""
    lookup: str = PK
    """The field that the key is of."""


_registered: list[Guarded] = []


def registered() -> tuple[Guarded, ...]:
    """Return the guards of all decorators and tasks."""
    return tuple(_registered)


def replace_registered(guards: Iterable[Guarded]) -> None:
    """Replace the registered guards. For tests of sweeps and checks."""
    _registered[:] = guards


def has_token_columns(model: type[Model]) -> bool:
    """Tell whether the model has the two columns of ``GuardedModel``."""
    try:
        model._meta.get_field(TOKEN), model._meta.get_field(EPOCH)
    except FieldDoesNotExist:
        return False
    return True


class StateGuard:
    """The states in which a row may be claimed, and the states that the claim, its success and its failure write.

    ``field``: the state column, by default ``status``. ``claim_from``: the claimable states. ``exclude``: rows that are
    not claimable, whatever their state: a ``Q``, ``Exists`` or dict of lookups. ``claim_as``: the state while the body
    runs. ``done``, ``failed``: the closing states; ``None`` leaves the state as it is. ``retry``: the state of a row
    whose body will be run again, by default ``claim_as`` if that is claimable, otherwise the first of ``claim_from``.
    ``missing_timeout``: seconds for which the message of a Celery task is tried again while its row does not exist, as
    its transaction may not be committed yet; then the task fails. A message that was published inside of ``atomic()``
    is also tried again while the state does not fit; then it is skipped.

    ``StateGuard()`` has no states. It claims any row that exists and is not excluded, also one that another claim has,
    and writes only the two columns of ``GuardedModel``, by which the row refuses the earlier claim.

    Rows are read and written through the model's ``_base_manager``; a row that it leaves out counts as missing.

    Raises ``TaskLockError`` for options that cannot work. The system check tasklock.E004 checks them against the model.
    """

    def __init__(
        self,
        *,
        field: str | None = None,
        claim_from: Iterable[Any] | None = None,
        claim_as: Any = None,
        done: Any = None,
        failed: Any = None,
        retry: Any = None,
        exclude: Q | Exists | Mapping[str, Any] | None = None,
        missing_timeout: Duration = 30,
    ) -> None:
        stateless = claim_from is None and claim_as is None
        given = {"field": field, "done": done, "failed": failed, "retry": retry}
        if stateless and (names := [name for name, value in given.items() if value is not None]):
            raise TaskLockError(
                f"{' and '.join(f'{name}={given[name]!r}' for name in names)} needs states to claim from: give"
                " claim_from=[...] and claim_as=..., or neither for a row without a state"
            )
        if isinstance(claim_from, str):
            raise TaskLockError(
                f"claim_from must be a list of states, not the text {claim_from!r}; write [{claim_from!r}]"
            )
        ordered = not isinstance(claim_from, Set)
        self.field = "" if stateless else field or "status"
        self.claim_from = tuple(claim_from or ())
        if not self.claim_from and not stateless:
            raise TaskLockError("claim_from must name at least one state: no row could ever be claimed")
        if (claim_as is None or None in self.claim_from) and not stateless:
            raise TaskLockError("a row without a state (NULL) cannot be guarded: give the column a default")
        self.claim_as = claim_as
        self.done = done
        self.failed = failed
        if exclude is not None and not isinstance(exclude, Q | Exists | Mapping):
            raise TaskLockError(f"exclude must be a Q object, Exists(...) or a dict of lookups, not {exclude!r}")
        if isinstance(exclude, Mapping):
            exclude = Q(**exclude)
        self.exclude = None if exclude is None else Q(exclude)
        if retry is not None and retry not in self.claim_from:
            raise TaskLockError(f"retry={retry!r} is not in claim_from: a row left in it could not be claimed again")
        if retry is None and not stateless:
            if not ordered and claim_as not in self.claim_from:
                raise TaskLockError(
                    "claim_from is a set, which has no first state: name the one for a retry, retry=..."
                )
            retry = claim_as if claim_as in self.claim_from else self.claim_from[0]
        self.retry = retry
        self.missing_timeout = milliseconds(missing_timeout, "missing_timeout") / 1000
        self._fits: WeakSet[type[Model]] = WeakSet()

    def __repr__(self) -> str:
        moves = f" {self.field}: {list(self.claim_from)} to {self.claim_as!r}" if self.claim_from else ""
        return f"<StateGuard{moves}>"

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle, without the weak references to checked models."""
        return {name: value for name, value in vars(self).items() if name != "_fits"}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        """Restore the pickled state. The copy checks its models again."""
        vars(self).update(state, _fits=WeakSet())

    def ensure_fits(self, model: type[Model]) -> None:
        """Raise ``TaskLockError`` if one UPDATE cannot check a row of ``model``. Each model is checked once."""
        if model in self._fits:
            return
        for text, hint in unfit(model, self):
            raise TaskLockError(f"{text} {hint}" if hint else text)
        self._fits.add(model)

    def claimable(self, key: Any, lookup: str = PK) -> Q:
        """Return the condition under which the row with this key is claimable."""
        where = Q(**{lookup: key})
        if self.field:
            where &= Q(**{f"{self.field}__in": self.claim_from})
        return where & ~self.exclude if self.exclude is not None else where

    def takes(self, state: Any) -> bool:
        """Tell whether a row in this state may be claimed, unless it is excluded."""
        return not self.field or state in self.claim_from

    def state_values(self, state: Any) -> dict[str, Any]:
        """Return the values of a write of this state; ``None`` leaves it as it is."""
        return {} if state is None else {self.field: state}

    def find_claiming_guards(
        self, model: type[Model], key: Any, token: str, lookup: str = PK
    ) -> tuple[Q, dict[str, Any]]:
        """Return condition and values of the claiming UPDATE of the row with this key.

        Raises ``TaskLockError`` if one UPDATE cannot check a row of ``model``.
        """
        self.ensure_fits(model)
        values = self.state_values(self.claim_as)
        if has_token_columns(model):
            values |= {TOKEN: token, EPOCH: F(EPOCH) + 1}
        return self.claimable(key, lookup), values

    def register(self, model: type[Model] | str, locked: Any = None, pk: str = "pk", lookup: str = PK) -> None:
        """Register this guard for system checks, the sweep and the admin. See ``Guarded``."""
        _registered.append(Guarded(model, self, locked, pk, lookup))


def unfit(model: type[Model], guard: StateGuard) -> list[tuple[str, str]]:
    """Return the reasons why the guard cannot work on the model, each with a hint. It sends no query."""
    label = model._meta.label
    if model._meta.abstract:
        return [(f"{label} is abstract: it has no rows.", "Guard a model that has a table.")]
    if isinstance(model._meta.pk, CompositePrimaryKey):
        return [(f"{label} has a primary key of several columns, which no claim can name.", "Give it one of its own.")]
    names = [*([guard.field] if guard.field else []), *((TOKEN, EPOCH) if has_token_columns(model) else ())]
    if not names:
        text = f"The guard of {label} has no states, and the model no columns {TOKEN} and {EPOCH}."
        return [(text, "Derive it from GuardedModel, and migrate, or give the guard claim_from and claim_as.")]
    found = []
    for name in names:
        try:
            field = model._meta.get_field(name)
        except FieldDoesNotExist:
            found.append((f"The guard of {label} names {name!r}, which is no field of it.", ""))
            continue
        if field not in table_options(model).local_concrete_fields:
            text = f"{label}.{name} is no column of its own table, so one UPDATE cannot judge it."
            found.append((text, "Guard the model whose table has the column."))
        elif why := _unfit_column(field):
            found.append((f"{label}.{name} {why[0]}.", why[1]))
        elif name == guard.field:
            found += dict.fromkeys(  # without duplicates: claim_as may be in claim_from
                (f"{label}.{name} is guarded with {state!r}, which {why[0]}.", why[1])
                for state in (*guard.claim_from, guard.claim_as, guard.done, guard.failed)
                if state is not None and (why := _unfit_state(field, state))
            )
    if found:
        return found
    try:
        query = model._base_manager.filter(guard.claimable(None)).query
    except (FieldError, TypeError, ValueError, ValidationError) as error:
        return [(f"The guard of {label} cannot be asked of the database: {error}", "")]
    if query.count_active_tables() > 1:
        text = f"The guard of {label} excludes by a joined table, so one UPDATE cannot judge it."
        return [(text, "Write it as exclude=Exists(...), or exclude by a column of the row.")]
    return []


def _unfit_column(field: Any) -> tuple[str, str] | None:
    """Return why a guard cannot write this column, and a hint."""
    if getattr(field, "generated", False):
        return "is generated: no UPDATE writes it", "Guard a column that is written."
    if field.name == EPOCH and field.null:
        return "may be NULL, which no claim can raise by one", "Make it a BigIntegerField(default=0), and migrate."
    short = field.max_length is not None and field.max_length < TOKEN_LENGTH
    if field.name == TOKEN and (not isinstance(field, CharField | TextField) or short):
        hint = f"Make it a CharField(max_length={TOKEN_LENGTH}, blank=True, default=''), and migrate."
        return f"cannot hold a token, which is a text of {TOKEN_LENGTH} characters", hint
    return None


def _unfit_state(field: Any, state: Any) -> tuple[str, str] | None:
    """Return why a row would read back as another value than this state, and a hint. States are compared in Python."""
    while field.remote_field:
        field = field.target_field
    if isinstance(state, Model):
        return "is a row, and the column has its key", f"Write {state.pk!r}."
    if hasattr(state, "resolve_expression"):
        return "is an expression, which no row is equal to", "Write the state itself."
    try:
        kept = field.to_python(state)
    except ValidationError as error:
        return f"cannot be in the column: {' '.join(error.messages)}", ""
    except (TypeError, ValueError) as error:  # from a project's own field
        return f"cannot be in the column: {error}", ""
    if kept != state:
        return f"is {kept!r} once it is in the column", f"Write {kept!r}."
    if isinstance(kept, str) and field.max_length is not None and len(kept) > field.max_length:
        return f"is longer than the column, of {field.max_length} characters", "Make it longer, and migrate."
    return None


def close_failed(model: type[Model], pk: Any, guard: StateGuard, where: Q) -> bool:
    """Close a row as failed, whose body will not be run again, while it is as ``where`` says. Return whether it was.

    Like ``revoke_claim`` it is one UPDATE, which raises the database's error if the row is locked for two seconds.
    """
    guard.ensure_fits(model)
    values = guard.state_values(guard.failed)
    if has_token_columns(model):
        values |= {TOKEN: "", EPOCH: F(EPOCH) + 1}
    rows = briefly(fresh(model._base_manager.using(router.db_for_write(model))).filter(where, pk=pk))
    return write(rows, pk, values, change=Change(guard.field, "failed"))


def revoke_claim(model: type[Model], pk: Any, guard: StateGuard | None, token: str, state: Any, why: Why) -> bool:
    """Take the row away from the claim with ``token``, whose writes are refused from then on, and set ``state``.

    Return False if that claim does not have the row, any more or yet. It is one UPDATE, which is atomic by itself, and
    raises the database's error if another transaction does not unlock the row within two seconds. On a
    model without token columns only the state can be compared, so the worker is refused only while the row is in
    another state. Without a ``guard`` only the token columns are written, and the row keeps its state.
    """
    if guard is not None:
        guard.ensure_fits(model)
    rows = briefly(fresh(model._base_manager.using(router.db_for_write(model))).filter(pk=pk))
    values = {} if guard is None else guard.state_values(state)
    change = Change(guard.field if guard else None, why)
    if not has_token_columns(model):
        return guard is not None and write(rows.filter(**{guard.field: guard.claim_as}), pk, values, change=change)
    if not token:
        return False
    return write(rows.filter(**{TOKEN: token}), pk, values | {TOKEN: "", EPOCH: F(EPOCH) + 1}, change=change)


def reset_unclaimed(model: type[Model], pk: Any, guard: StateGuard, state: Any) -> bool:
    """Set ``state`` in a row that is in the guard's claimed state without a claim. Return False if it is not, any more.

    It is one UPDATE, like that of ``revoke_claim``, of a model with token columns.
    """
    guard.ensure_fits(model)
    rows = briefly(fresh(model._base_manager.using(router.db_for_write(model))).filter(pk=pk))
    rows = rows.filter(**{guard.field: guard.claim_as, TOKEN: ""})
    values = {**guard.state_values(state), EPOCH: F(EPOCH) + 1}
    return write(rows, pk, values, change=Change(guard.field, "swept"))
