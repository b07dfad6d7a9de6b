"""The key by which a call names its row: the primary key, or the value of another unique field.

A key has one spelling, because names of locks are made from it, and a text that is converted may be the key of another
row: the token ``"7"`` of row 8 is not the primary key 7.
"""

from __future__ import annotations

from datetime import date
from typing import Any

from django.core.exceptions import FieldDoesNotExist, ValidationError
from django.db.models import Model

from django_tasklock.columns import table_options
from django_tasklock.exceptions import TaskLockError

PK = "pk"
"""The lookup of the primary key, whatever that is called."""


def key_field(model: type[Model], lookup: str) -> Any:
    """Return the field that ``lookup`` names. Raises ``TaskLockError`` unless each of its values names one row."""
    if lookup == PK:
        return model._meta.pk
    where = f"lookup={lookup!r}"
    try:
        field: Any = model._meta.get_field(lookup)
    except FieldDoesNotExist:
        raise TaskLockError(f"{where}: {model._meta.label} has no such field") from None
    if not getattr(field, "unique", False):
        raise TaskLockError(
            f"{where}: {model._meta.label}.{lookup} is not unique, so it may name several rows; make it unique=True,"
            " and migrate"
        )
    if field not in table_options(model).local_concrete_fields:
        raise TaskLockError(
            f"{where}: {model._meta.label}.{lookup} is no column of its own table, so one UPDATE cannot find the row"
            " by it; use the primary key"
        )
    return field


def check_key(model: type[Model], lookup: str, value: Any, argument: str) -> Any:
    """Return ``value`` in the type of its field.

    Raises ``TaskLockError`` if it cannot be converted, or is not the one spelling of its key. The text of a key that
    JSON has no type for, such as a UUID, a date or a ``Decimal``, is accepted if it is the one that JSON has for it.
    """
    field = key_field(model, lookup)
    target = _value_field(field)
    where = f"{argument}={value!r:.80} is no key of {model._meta.label}, by its field {field.name!r}"
    try:
        key = target.to_python(value)
    except (ValidationError, TypeError, ValueError, ArithmeticError) as error:
        why = " ".join(error.messages) if isinstance(error, ValidationError) else str(error)
        raise TaskLockError(f"{where}: {why}") from error
    if key is None:
        raise TaskLockError(f"{where}: pass the value that the row has in it")
    if isinstance(value, type(key)) and isinstance(value, bool) == isinstance(key, bool) and value == key:
        return key
    if isinstance(value, str) and not isinstance(key, str | int | float) and value == key_text(key):
        return key
    raise TaskLockError(f"{where}: that would be {key!r}; pass the value that the row has in it")


def key_text(key: Any) -> str:
    """Return the text of a key, in which a lock's holder records it."""
    return key.isoformat() if isinstance(key, date) else str(key)


def parse_key(model: type[Model], lookup: str, text: str) -> Any:
    """Return the key with this text.

    Raises ``ValidationError``, ``ValueError`` or ``TypeError`` if invalid, and ``TaskLockError`` like ``key_field``.
    """
    field = _value_field(key_field(model, lookup))
    key = field.to_python(text)
    if not isinstance(key, str):  # rows are saved without asking a project's validators
        field.run_validators(key)  # a number may exceed the range of its column
    hash(key)  # the text of a composite primary key gives a list
    return key


def _value_field(field: Any) -> Any:
    """Return the field whose values a key has: that of another table, if ``field`` is a link to it."""
    while field.remote_field:
        field = field.target_field
    return field
