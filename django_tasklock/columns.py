"""The two columns by which a row refuses stale writers, and their protection from all other writes.

Only a claim may change them. ``save()``, a fixture, ``bulk_update()`` and an upsert write columns as they were read,
perhaps long ago; setting these two back would make an overtaken claim valid again. The protection goes by the names of
the columns, in every model that has both, including the historical models of data migrations, whose fields are made
from migration files.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import django
from django.db import models
from django.db.models import Case, F, Value
from django.db.models.constants import OnConflict
from django.db.models.expressions import Col, CombinedExpression
from django.db.models.functions import Cast
from django.db.models.options import Options
from django.db.models.signals import class_prepared, post_save, pre_save
from django.db.models.sql import InsertQuery, UpdateQuery

from django_tasklock.exceptions import TaskLockError

TOKEN = "lock_token"  # noqa: S105  # the name of one
"""The column with the token of the claim, empty while the row is not claimed. A body that was stopped from outside
leaves a mark in its place, so that the row is found if nothing runs it again."""
EPOCH = "lock_epoch"
"""The column with the number of claims of the row."""

if TYPE_CHECKING:
    _Field = models.Field[Any, Any]
else:
    _Field = object


class _Claimed(_Field):
    """A field that no write of an instance sets in an existing row, nor copies into a new one."""

    plain: str
    """The dotted path of the field's own class, for migrations."""

    def pre_save(self, model_instance: models.Model, add: bool) -> Any:
        if not add:
            return F(self.attname)
        if model_instance._state.db is not None:  # the instance was read from a row: this is a copy of it
            setattr(model_instance, self.attname, self.get_default())
        return super().pre_save(model_instance, add)

    def deconstruct(self) -> Any:
        name, _, args, kwargs = super().deconstruct()
        return name, self.plain, args, kwargs

    if django.VERSION >= (6, 1):

        def get_placeholder_sql(self, value: Any, compiler: Any, connection: Any) -> tuple[str, Any]:
            self._protect(value, compiler.query)
            compiled: tuple[str, Any] = compiler.compile(value) if hasattr(value, "as_sql") else ("%s", [value])
            return compiled

    else:

        def get_placeholder(self, value: Any, compiler: Any, connection: Any) -> str:
            self._protect(value, compiler.query)
            return "%s"

    def _protect(self, value: Any, query: Any) -> None:
        """Keep the column of existing rows in a bulk write of instances; refuse another value that would set it back.

        Every queryset passes here, where Django makes the SQL.
        """
        if isinstance(query, InsertQuery):
            upsert: Any = query
            if upsert.on_conflict is OnConflict.UPDATE and self in upsert.update_fields:
                upsert.update_fields = [field for field in upsert.update_fields if not isinstance(field, _Claimed)]
                if not upsert.update_fields:
                    raise TaskLockError(f"{self} belongs to the claim; bulk_create(update_fields=...) needs others")
        elif isinstance(query, UpdateQuery):
            # bulk_update() writes a Case, on PostgreSQL in a Cast. Django has resolved it for this query alone.
            case: Any = value.get_source_expressions()[0] if isinstance(value, Cast) else value
            if isinstance(case, Case) and case.output_field == self:
                case.cases, case.default = [], F(self.attname).resolve_expression(query)
            elif not self._may_become(value):
                raise TaskLockError(
                    f"{self} belongs to the claim, and set back it would let stale writes in: leave it out of update()"
                )

    def _may_become(self, value: Any) -> bool:
        """Tell whether ``value`` is a constant, or the column itself."""
        return not hasattr(value, "as_sql") or (isinstance(value, Col) and value.target == self)


class _Epoch(_Claimed):
    def _may_become(self, value: Any) -> bool:
        """Tell whether ``value`` is the column itself, or the column plus a number."""
        if isinstance(value, CombinedExpression) and value.connector == CombinedExpression.ADD:
            more = getattr(value.rhs, "value", None)
            return isinstance(more, int) and more >= 0 and self._may_become(value.lhs)
        return isinstance(value, Col) and value.target == self


class _Token(_Claimed):
    def before_save(self, instance: models.Model, raw: bool, **details: Any) -> None:
        """Prepare the values of a fixture, which Django saves raw, so that an existing row keeps its own."""
        if not raw:
            return
        token, epoch = getattr(instance, TOKEN), getattr(instance, EPOCH)
        setattr(instance, TOKEN, _Kept(TOKEN, token, ""))
        setattr(instance, EPOCH, _Kept(EPOCH, epoch, epoch + 1 if token else epoch))

    def after_save(self, instance: models.Model, raw: bool, **details: Any) -> None:
        """Restore the values of the fixture in the instance."""
        for name in (TOKEN, EPOCH):
            if isinstance(kept := getattr(instance, name), _Kept):
                setattr(instance, name, kept.read)


class _Kept:
    """An expression that keeps the column of an existing row, and writes ``made`` to a new one.

    A row that a fixture restores is not claimed.
    """

    def __init__(self, column: str, read: Any, made: Any) -> None:
        self.column = column
        self.read = read
        self.made = made

    def resolve_expression(self, query: Any, *args: Any, **kwargs: Any) -> Any:
        """Resolve the expression. Django tries an ``UPDATE`` and then an ``INSERT``."""
        value = F(self.column) if isinstance(query, UpdateQuery) else Value(self.made)
        return value.resolve_expression(query, *args, **kwargs)


_KINDS = {TOKEN: _Token, EPOCH: _Epoch}


@cache
def _kept_kind(kind: type[_Claimed], field: type[Any], plain: str) -> type[Any]:
    return type(f"{kind.__name__}{field.__name__}", (kind, field), {"plain": plain, "__module__": __name__})


def table_model(model: type[models.Model]) -> type[models.Model]:
    """Return the model that owns the table: for a proxy its concrete model."""
    return model._meta.concrete_model or model


def table_options(model: type[models.Model]) -> Options[Any]:
    """Return the ``_meta`` of the model that owns the table."""
    return table_model(model)._meta


def protect(model: type[models.Model]) -> None:
    """Protect the two columns of ``model``, if it has both, from all writes but those of claims."""
    table = table_options(model)
    fields = {field.name: field for field in table.local_concrete_fields if field.name in _KINDS}
    if len(fields) < len(_KINDS):
        return
    for name, kind in _KINDS.items():
        field = fields[name]
        if not isinstance(field, kind):
            plain: Any = type(field)
            field.__class__ = _kept_kind(kind, plain, field.deconstruct()[1])
    token: Any = fields[TOKEN]
    pre_save.connect(token.before_save, sender=model)  # weakly, because historical models are short-lived
    post_save.connect(token.after_save, sender=model)


def _prepared(sender: type[models.Model], **details: Any) -> None:
    protect(sender)


# On import, not in ready(): rows may be saved before, for example in the ready() of another app.
class_prepared.connect(_prepared, dispatch_uid="tasklock.columns")
