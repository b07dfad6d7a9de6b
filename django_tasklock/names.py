"""Lock names: which are valid, and templates that make them from the arguments of a function."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import re
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from functools import lru_cache
from string import Formatter
from typing import Any

from asgiref.sync import sync_to_async
from django.db.models import Model

from django_tasklock.conf import get_settings
from django_tasklock.exceptions import TaskLockError

MAX_LENGTH = 200
"""The most characters of a name: every store can keep them."""


def clean(name: object, prefix: str = "") -> str:
    """Return ``name`` as a plain ``str`` without ``prefix``; ``Names`` as they are.

    Raises ``TaskLockError`` with the reason for an invalid name.
    """
    begins = prefix or "\0", "{"  # the second as in a Redis Cluster
    if type(name) is str and name.isprintable() and 0 < len(name) <= MAX_LENGTH and not name.startswith(begins):
        return name
    if not isinstance(name, str):
        hint = "; decode it first" if isinstance(name, bytes) else "; use e.g. f'video:{pk}'"
        raise TaskLockError(f"a lock name must be str, not {type(name).__name__} ({name!r:.60}){hint}")
    if not isinstance(name, Names):
        name = str.__str__(name)  # the value of an enum's member, which may have another str() and repr()
    bare = strip_prefix(name, prefix)
    if not bare:
        raise TaskLockError("a lock name must not be empty", name=name)
    if len(bare) > MAX_LENGTH:
        raise TaskLockError(
            f"a lock name may have {MAX_LENGTH} characters, not {len(bare)}: {bare[:60]!r}...; hash the long part",
            name=bare[:MAX_LENGTH],
        )
    if not bare.isprintable():
        raise TaskLockError(f"a lock name must be printable, this one is not: {bare!r:.120}", name=bare)
    return bare


def bare_name(name: object) -> str:
    """Return the whole name of a lock, or a concurrency limiter, of any tenant: without the prefix of the settings.

    Raises ``TaskLockError`` saying why it can be none.
    """
    return clean(name, get_settings().prefix)


_tenant: ContextVar[str | None] = ContextVar("tasklock_tenant", default=None)


@contextmanager
def of_tenant(tenant: str | None) -> Iterator[None]:
    """Names made in the block are those of ``tenant``. ``None``: of the present one; empty: they are whole names."""
    token = _tenant.set(tenant)
    try:
        yield
    finally:
        _tenant.reset(token)


_present: ContextVar[str | None] = ContextVar("tasklock_present_tenant", default=None)


@asynccontextmanager
async def tenant_awaited() -> AsyncIterator[None]:
    """In the block of a coroutine, the present tenant is that of the thread in which its ORM calls run."""
    if get_settings().tenant_function is None:
        yield
        return
    token = _present.set(await sync_to_async(get_settings().tenant)())
    try:
        yield
    finally:
        _present.reset(token)


def is_tenant_known() -> bool:
    """Tell whether names can be made here. They cannot in a coroutine that has yet to await its tenant."""
    known = _tenant.get() is not None or _present.get() is not None
    return known or asyncio._get_running_loop() is None or get_settings().tenant_function is None


def present_tenant() -> str:
    """Return the tenant whose code runs here; empty where there are no tenants. Raises like ``Settings.tenant``."""
    awaited = _present.get()
    return get_settings().tenant() if awaited is None else awaited


def own_name(name: object) -> str:
    """Return the name of a lock of the present tenant as stores have it. Raises ``TaskLockError`` like ``clean``."""
    return with_tenant(clean(name, get_settings().prefix))


def with_tenant(name: str) -> str:
    """Return a clean name as the present tenant has it: ``acme:video:42``. A name that begins so stays as it is.

    If it is too long then, a hash of the name is its end.
    """
    tenant = _tenant.get()
    if tenant is None:
        tenant = present_tenant()
    if not tenant:
        return name
    if isinstance(name, Names):
        return clean_all(map(with_tenant, name.each))
    if name.startswith(f"{tenant}:"):
        return name
    whole = f"{tenant}:{name}"
    if len(whole) > MAX_LENGTH:
        digest = hashlib.sha256(name.encode()).hexdigest()
        whole = whole[: MAX_LENGTH - len(digest)] + digest
    return whole


def other_tenant(name: str) -> str:
    """Return the tenant of a lock, in whose tables its row is, unless that is the present one; empty: it is."""
    here = present_tenant()
    tenant = each_of(name)[0].partition(":")[0]
    return "" if not here or tenant == here else tenant


MOST = 64
"""The most names of one lock: while a store checks them all, it serves no other client."""


class Names(str):
    """Several names that are locked together, sorted. As text it is for messages only."""

    __slots__ = ("each",)

    each: tuple[str, ...]

    def __new__(cls, each: tuple[str, ...]) -> Names:
        self = super().__new__(cls, " + ".join(each))
        self.each = each
        return self

    def __reduce__(self) -> tuple[type[Names], tuple[tuple[str, ...]]]:
        return Names, (self.each,)


def each_of(name: str) -> tuple[str, ...]:
    """Return the names of a lock, one or several, as a tuple."""
    return name.each if isinstance(name, Names) else (name,)


def as_names(names: object) -> tuple[Any, ...]:
    """Return one name, or a list of names, as a tuple. Raises ``TaskLockError`` for an empty list."""
    found = tuple(names) if isinstance(names, list | tuple) else (names,)
    if not found:
        raise TaskLockError("a lock needs a name, and this is an empty list of them")
    return found


def clean_all(names: Iterable[object], prefix: str = "") -> str:
    """Return the name of a lock that has all of these names, sorted and without duplicates. Raises like ``clean``."""
    each = tuple(
        sorted({clean(one, prefix) for name in names for one in (name.each if isinstance(name, Names) else (name,))})
    )
    if len(each) > MOST:
        raise TaskLockError(f"a lock may have {MOST} names, not {len(each)}", name=each[0])
    return each[0] if len(each) == 1 else Names(each)


def strip_prefix(name: str, prefix: str) -> str:
    """Return the name without the prefix: with ``task_lock:``, ``task_lock:6`` and ``6`` are the same lock.

    In a Redis Cluster the prefix has a hash tag, and ``{task_lock}:6`` is the same lock, too.
    """
    tag = tagged(prefix)
    while prefix and name.startswith((prefix, tag)):  # repeatedly, so that cleaning a name twice changes nothing
        name = name.removeprefix(prefix).removeprefix(tag)
    return name


def tagged(prefix: str) -> str:
    """Return a prefix with a hash tag, which puts all keys into one slot of a Redis Cluster.

    ``{task_lock}:`` for ``task_lock:``. One that has braces stays as it is.
    """
    return prefix if "{" in prefix or "}" in prefix else f"{{{prefix.removesuffix(':')}}}:"


class Parameters:
    """The parameters of a function. They bind the arguments of its calls."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.signature = inspect.signature(function)
        self._names = tuple(self.signature.parameters)
        self._either_way = all(one.kind is one.POSITIONAL_OR_KEYWORD for one in self.signature.parameters.values())

    def bind(self, args: Collection[Any], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the arguments of a call by name, defaults filled in. Raises ``TypeError`` if they do not fit."""
        if self._either_way and len(args) + len(kwargs) == len(self._names):
            # The usual call has one argument for each parameter. Signature.bind() takes three times as long.
            arguments = dict(zip(self._names, args, strict=False))
            if not kwargs or (arguments := {**arguments, **kwargs}).keys() == set(self._names):
                return arguments
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return bound.arguments


parameters_of = lru_cache(maxsize=256)(Parameters)
"""The ``Parameters`` of a function, cached, because making them takes longer than binding."""


class NameTemplate:
    """A template such as ``"video:{video_id}"`` over the arguments of ``function``, or a callable, or a plain text.

    ``{0}`` is the first argument after ``self`` or ``cls``, ``{1}`` the one after it.

    Arguments whose texts differ make different names: the characters that separate the fields are escaped inside of
    them. A field that is no argument is refused here, at decoration. A value without a text of its own, such as an
    unsaved instance or a plain object, is refused when the name is made.

    ``hashed``: a name that is too long or not printable becomes the template's beginning and a hash.

    Raises ``TaskLockError`` for a template that cannot work.
    """

    def __init__(
        self,
        template: str | Callable[..., str],
        function: Callable[..., Any],
        *,
        prefix: str = "",
        hashed: bool = False,
    ) -> None:
        self.template = template
        self.hashed = hashed
        self._prefix = prefix
        parameters = Parameters(function)
        self.signature = parameters.signature
        self.bind = parameters.bind
        self.fields: frozenset[str] = frozenset()
        self._escapes: dict[int, str] = {}
        self._looks_inside = False
        self.numbered = False
        """Whether it has arguments by number."""
        if callable(template):
            return
        clean(template, prefix)
        where = f"lock name {template!r} of {getattr(function, '__qualname__', function)!r}"
        known = [p.name for p in self.signature.parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        self._text = _with_names(template, known[1:] if known[:1] in (["self"], ["cls"]) else known)
        self.numbered = self._text != template
        reader = _Reader()
        try:
            literal = reader.vformat(self._text, (), {})
        except ValueError as error:
            raise TaskLockError(f"{where} cannot be read: {error}", name=template) from error
        if reader.from_end:
            raise TaskLockError(
                f"{where} counts from the end in {{{reader.from_end}}}, which a template cannot: str.format looks for"
                " that text as a key; give a callable that makes the name",
                name=template,
            )
        for root in reader.roots:
            if root not in known:
                raise TaskLockError(
                    f"{where} names {root!r}, which is no argument of it; known: {', '.join(known) or 'none'}",
                    name=template,
                )
        between = literal.split(_FIELD)[1:-1]
        if not all(between):
            raise TaskLockError(f"{where} has two fields side by side: put a separator between them", name=template)
        if any("%" in text for text in between):
            raise TaskLockError(f"{where} has '%' between fields: use another separator, '%' escapes it", name=template)
        if between:
            self._escapes = {ord(char): _escape(char) for char in "".join(between) + "%"}
        self.fields = frozenset(reader.roots)
        self._looks_inside = reader.looks_inside

    def name(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """Return the name for a call. Raises ``TypeError`` if the arguments do not fit the function."""
        if callable(self.template):
            return self.template(*args, **kwargs)
        if not self.fields:
            return self._fill({})
        return self._fill(self.bind(args, kwargs))

    def name_and_arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
        """Return what ``name`` does, and the call's arguments by name, defaults filled in."""
        arguments = self.bind(args, kwargs)
        return self.template(*args, **kwargs) if callable(self.template) else self._fill(arguments), arguments

    def name_for(self, known: Mapping[str, Any]) -> str:
        """Return the name for the values of the template's fields, as in ``lock.is_locked(video_id=42)``."""
        if callable(self.template):
            return self.template(**known)
        missing = sorted(self.fields - known.keys())
        if missing:
            raise TaskLockError(f"lock name {self.template!r} also needs {', '.join(missing)}", name=self.template)
        return self._fill(known)

    def _fill(self, values: Mapping[str, Any]) -> str:
        if not self._escapes and not self._looks_inside and all(type(values[name]) in _PLAIN for name in self.fields):
            found = self._text.format_map(values)
        else:
            found = _Filling(self._text, self._escapes).vformat(self._text, (), values)
        return self._fitting(found) if self.hashed else found

    def _fitting(self, name: str) -> str:
        if len(strip_prefix(name, self._prefix)) <= MAX_LENGTH and name.isprintable():
            return name
        assert isinstance(self.template, str)
        digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
        return self.template.partition("{")[0][: MAX_LENGTH - len(digest)] + digest


class NameTemplates:
    """Several templates over the arguments of one function, for a lock that has all of their names."""

    def __init__(
        self, templates: tuple[str | Callable[..., str], ...], function: Callable[..., Any], *, prefix: str = ""
    ) -> None:
        self.each = tuple(NameTemplate(one, function, prefix=prefix) for one in templates)
        self.template = templates
        self.signature = self.each[0].signature
        self.fields = frozenset[str]().union(*(one.fields for one in self.each))
        self._prefix = prefix

    def name(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """Return the name for one call."""
        return self.joined(one.name(args, kwargs) for one in self.each)

    def name_and_arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
        """Return what ``name`` does, and the call's arguments by name, defaults filled in."""
        return self.name(args, kwargs), self.each[0].bind(args, kwargs)

    def joined(self, names: Iterable[str]) -> str:
        """Return the name of a lock that has all of these names."""
        return clean_all(names, self._prefix)


def says_address(text: str) -> bool:
    """Tell whether a text has the memory address of an object: no two processes would make the same name from it."""
    return _ADDRESS.search(text) is not None


_PLAIN = frozenset({str, int})
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


class _Filling(Formatter):
    """Fills in a template, escapes the fields, and refuses values without a text of their own."""

    def __init__(self, template: str, escapes: dict[int, str]) -> None:
        self.template = template
        self.escapes = escapes
        self.field = ""

    def get_field(self, field_name: str, args: Any, kwargs: Any) -> Any:
        self.field = field_name
        try:
            value, root = self._find(field_name, args, kwargs)
        except (AttributeError, LookupError, TypeError) as error:
            raise self._refused(f"cannot be read ({type(error).__name__}: {error})") from error
        if isinstance(value, Model) and value.pk is None:
            raise self._refused(
                f"is an unsaved {type(value).__name__}, which has no key yet; save it first, and write"
                f" {{{field_name}.pk}}"
            )
        return value, root

    def _find(self, field_name: str, args: Any, kwargs: Any) -> Any:
        try:
            return super().get_field(field_name, args, kwargs)
        except AttributeError as error:
            if not isinstance(error.obj, Mapping):
                raise
            # A message has a dict where its task's body, with pydantic=True, has a model: one name, written one way.
            return super().get_field(_ATTRIBUTE.sub(r"[\1]", field_name), args, kwargs)

    def convert_field(self, value: Any, conversion: Any) -> Any:
        converted = super().convert_field(value, conversion)
        if isinstance(value, set | frozenset):
            raise self._refused(
                f"is a {type(value).__name__}, which each process writes in an order of its own, so no two would have"
                " one lock; pass it sorted, as a tuple"
            )
        if not isinstance(value, str) and says_address(text := format(converted)):
            raise self._refused(
                f"is {text[:60]}, which says where it is in memory, so no two calls would have one lock; write e.g."
                f" {{{self.field}.id}}"
            )
        return converted

    def _refused(self, why: str) -> TaskLockError:
        return TaskLockError(f"lock name {self.template!r}: {{{self.field}}} {why}", name=self.template)

    def format_field(self, value: Any, format_spec: str) -> str:
        return str(super().format_field(value, format_spec)).translate(self.escapes)


def _with_names(template: str, names: Sequence[str]) -> str:
    """Return the template with the names of the arguments in place of their numbers, where there are so many."""

    def named(found: re.Match[str]) -> str:
        number = found["number"]
        return found[0] if number is None or int(number) >= len(names) else "{" + names[int(number)]

    return _NUMBER.sub(named, template)


_NUMBER = re.compile(r"\{\{|\{(?P<number>[0-9]+)(?=[.\[!:}])")
_FIELD = "\0"  # a name cannot contain it
_ATTRIBUTE = re.compile(r"\.(\w+)")
_FROM_END = re.compile(r"\[-[0-9]+\]")


class _Reader(Formatter):
    """Finds the fields of a template, also those in format specs, and its literal text."""

    def __init__(self) -> None:
        self.roots: list[str] = []
        self.looks_inside = False
        self.from_end = ""
        """A field with a negative index, which ``str.format`` does not support."""

    def get_field(self, field_name: str, args: Any, kwargs: Any) -> Any:
        if _FROM_END.search(field_name):
            self.from_end = field_name
        self.looks_inside |= "." in field_name or "[" in field_name
        self.roots.append(field_name.split(".", maxsplit=1)[0].split("[", maxsplit=1)[0])
        return "", field_name

    def format_field(self, value: Any, format_spec: str) -> str:
        return _FIELD


def _escape(char: str) -> str:
    # Byte by byte, as in a URL, so that no escape is the beginning of another one.
    return "".join(f"%{byte:02X}" for byte in char.encode())
