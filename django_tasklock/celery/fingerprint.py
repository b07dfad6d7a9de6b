"""The default lock name of a call: the task's name and a fingerprint of the arguments."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from django_tasklock.exceptions import TaskLockError
from django_tasklock.names import MAX_LENGTH, parameters_of

DIGITS = 32  # of SHA-256, in hexadecimal: 128 bits


def fingerprint_name(task: str, run: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Return ``task:fingerprint``. Raises ``TypeError`` if arguments do not fit, ``TaskLockError`` for objects."""
    return f"{shortened(task, MAX_LENGTH - DIGITS - 1)}:{fingerprint(parameters_of(run).bind(args, kwargs))}"


def shortened(text: str, most: int) -> str:
    """Return ``text``, or its hash if it is longer than ``most`` or not valid in a lock's name."""
    if len(text) <= most and text.isprintable():
        return text
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def fingerprint(arguments: Mapping[str, Any]) -> str:
    """Return the same text for equal arguments, however they were passed, and another text for different ones.

    The order of a dict or a set does not count, the type of a value does: ``1``, ``"1"`` and ``True`` differ. A tuple
    counts as a list, which is what a serializer makes of it.
    """
    try:
        text = _text_of_pairs(arguments, "argument")
    except RecursionError:
        raise TaskLockError("an argument contains itself: no lock name can be made of it") from None
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:DIGITS]


def _text(value: Any, where: str) -> str:
    """Return an unambiguous text: each part has its type and its length."""
    match value:
        case None | bool():
            kind, inner = "", repr(value)
        case Enum():
            kind, inner = f"{type(value).__module__}.{type(value).__qualname__}", f"{value.name}={value.value!r}"
        case str():
            kind, inner = "str", str.__str__(value)
        case int():
            kind, inner = "int", int.__format__(value, "x")  # decimal conversion has a limit of digits
        case float():
            kind, inner = "float", float.__repr__(value)
        case Decimal():
            kind, inner = "Decimal", Decimal.__str__(value)
        case bytes() | bytearray():
            kind, inner = "bytes", bytes(value).hex()
        case datetime() | date() | time():
            kind, inner = type(value).__name__, value.isoformat()
        case timedelta() | UUID():
            kind, inner = type(value).__name__, repr(value)
        case list() | tuple():
            kind, inner = "list", "".join(_text(item, f"{where}[{index}]") for index, item in enumerate(value))
        case set() | frozenset():
            kind, inner = "set", "".join(sorted(_text(item, where) for item in value))
        case Mapping():
            return _text_of_pairs(value, where)
        case _:
            raise TaskLockError(
                f"{where} is a {type(value).__name__}, of which no lock name can be made: pass its primary key or"
                " another plain value, or give the task a key, key='video:{video_id}'"
            )
    return f"{kind}({len(inner)}:{inner})"


def _text_of_pairs(value: Mapping[Any, Any], where: str) -> str:
    pairs = sorted([(_text(key, where), _text(item, f"{where}[{key!r}]")) for key, item in value.items()])
    inner = "".join([first + second for first, second in pairs])
    return f"dict({len(inner)}:{inner})"
