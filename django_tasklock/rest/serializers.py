"""Serializers for the frozen values of ``operations``. A serializer lists the fields; their types and descriptions are
the annotations and docstrings of the values.
"""

from __future__ import annotations

import ast
import enum
import inspect
import textwrap
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from itertools import pairwise
from types import NoneType
from typing import Any, ClassVar, get_args, get_origin, get_type_hints

from django.utils.translation import gettext_lazy as _
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from django_tasklock.operations import Act
from django_tasklock.types import LockInfo


class ValueSerializer(serializers.Serializer):
    """A serializer of a frozen value, named ``TaskLock...`` in the OpenAPI document, as a project may have a ``Lock``.

    ``value_class``: the class of the value; ``value_fields``: its attributes that are sent, in this order, and no
    others. A field that is declared in the serializer replaces the one derived from the annotation.
    """

    value_class: ClassVar[Any] = None
    value_fields: ClassVar[str] = ""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.Meta = type("Meta", (), {"ref_name": f"TaskLock{cls.__name__.removesuffix('Serializer')}"})

    def get_fields(self) -> dict[str, serializers.Field]:
        """Return the declared fields and those derived from ``value_fields``, a base class's first."""
        declared: dict[str, serializers.Field] = super().get_fields()
        found: dict[str, serializers.Field] = {}
        for kind in reversed(type(self).__mro__):
            for name in str(vars(kind).get("value_fields", "")).split():
                found[name] = (
                    declared[name]
                    if name in declared
                    else make_field(*_read_attributes(vars(kind)["value_class"])[name])
                )
        return {**found, **declared}

    def sources(self, value: Any) -> tuple[Any, ...]:
        """Return the objects that have the fields as attributes; the first object with the attribute is used."""
        return (value,)

    def to_representation(self, instance: Any) -> Any:
        """Return the JSON. Attributes are read, since ``LockInfo`` is also a mapping, in which times are text."""
        if self.value_class is not None and not isinstance(instance, dict):
            sources = self.sources(instance)
            instance = {
                name: next(getattr(source, name) for source in sources if hasattr(source, name)) for name in self.fields
            }
        return super().to_representation(instance)


@lru_cache
def _read_attributes(kind: Any) -> Mapping[str, tuple[Any, str]]:
    """Return the type of each attribute of a frozen value, and its docstring with JSON's terms."""
    try:
        [body] = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    except OSError:  # compiled, without its source
        body = ast.Pass()
    texts = {
        attribute.target.id: " ".join(text.value.value.split()).replace("``None``", "null").replace("``", "`")
        for attribute, text in pairwise(getattr(body, "body", ()))
        if isinstance(attribute, ast.AnnAssign) and isinstance(attribute.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
    }
    return {name: (hint, texts.get(name, "")) for name, hint in get_type_hints(kind).items()}


def make_field(hint: Any, text: str = "") -> serializers.Field:
    """Return the field for values of this type; ``text``: its description."""
    more: dict[str, Any] = {"help_text": text} if text else {}
    if NoneType in get_args(hint):
        [hint] = [one for one in get_args(hint) if one is not NoneType]
        more["allow_null"] = True
    if hint is Any:
        return StateField(allow_null=True, **more)
    if get_origin(hint) is Sequence:
        [item] = get_args(hint)
        return serializers.ListField(child=StateField() if item is Any else make_field(item), **more)
    if issubclass(hint, enum.StrEnum):
        return one_of(*hint, **more)
    kinds: dict[Any, Any] = {
        str: serializers.CharField,
        bool: serializers.BooleanField,
        int: serializers.IntegerField,
        float: serializers.FloatField,
        datetime: utc_datetime_field,
    }
    return kinds[hint](**more)


def one_of(*words: str, **more: Any) -> serializers.RegexField:
    """Return a field for one of these words.

    It has a pattern in place of an enum: drf-spectacular names an enum after its field, and would rename the project's
    enums of that name.
    """
    return serializers.RegexField(f"^({'|'.join(words)})$", **more)


def utc_datetime_field(**more: Any) -> serializers.DateTimeField:
    """Return a field for a time in UTC, ISO 8601, whatever the project's format is."""
    return serializers.DateTimeField(format="iso-8601", default_timezone=UTC, **more)


@extend_schema_field(OpenApiTypes.ANY)
class StateField(serializers.Field):
    """The state of a row: a text, a number, true, false or null. Other values are sent as text."""

    def to_representation(self, value: Any) -> Any:
        """Return the value, as text unless JSON has its type."""
        return value if value is None or isinstance(value, bool | int | str) else str(value)

    def to_internal_value(self, data: Any) -> Any:
        """Return the value if it is a text, an integer or a boolean."""
        if isinstance(data, bool | int | str):
            return data
        raise serializers.ValidationError(_("A text, a whole number, true or false."))


# Shared by locks and limiters


class AskSerializer(ValueSerializer):
    """The reason for an action."""

    reason = serializers.CharField(
        default="", allow_blank=True, max_length=1000, help_text="The reason, recorded in the audit trail."
    )


class InfoSerializer(ValueSerializer):
    """The holder of a lock or permit, and its times."""

    value_class: ClassVar[Any] = LockInfo
    value_fields = "name holder fingerprint task task_id acquired_at held_for ttl time_left fence waiting"


class ActSerializer(ValueSerializer):
    """An action of an operator, an API key or the sweep."""

    value_class = Act
    value_fields = "at actor action reason outcome"


class ProblemSerializer(ValueSerializer):
    """An error."""

    code = serializers.CharField(help_text="For programs.")
    detail = serializers.CharField(help_text="For people: a sentence.")
