"""What the shapes are made of."""

from __future__ import annotations

from datetime import UTC
from typing import Any

from django.utils.translation import gettext_lazy as _
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

__all__ = ["Shape", "State", "moment", "one_of"]


class Shape(serializers.Serializer):
    """Known as ``TaskLock...`` in the OpenAPI document: a project may have a ``Lock`` of its own."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.Meta = type("Meta", (), {"ref_name": f"TaskLock{cls.__name__.removesuffix('Serializer')}"})


def one_of(*words: str, **more: Any) -> serializers.RegexField:
    """One of these words.

    A pattern where an enum would do: drf-spectacular names an enum after its field, and would rename
    those that the project has under that name.
    """
    return serializers.RegexField(f"^({'|'.join(words)})$", **more)


@extend_schema_field(OpenApiTypes.ANY)
class State(serializers.Field):
    """A text, a number, true, false or null: the state of a row. Anything else is sent as text."""

    def to_representation(self, value: Any) -> Any:
        """As JSON has it."""
        return value if value is None or isinstance(value, bool | int | str) else str(value)

    def to_internal_value(self, data: Any) -> Any:
        """As it came, if it is one of those."""
        if isinstance(data, bool | int | str):
            return data
        raise serializers.ValidationError(_("A text, a whole number, true or false."))


def moment(**more: Any) -> serializers.DateTimeField:
    """A time in UTC, ISO 8601, whatever the project's format is."""
    return serializers.DateTimeField(format="iso-8601", default_timezone=UTC, **more)
