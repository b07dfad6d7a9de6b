"""Database connections that are given back: who opened one for a body, and who closes it.

Django keeps a connection per thread, and closes it at the end of a request; Celery closes those of the thread
that runs the task. Nobody closes what a coroutine's queries, or a thread of the body's own, have opened. So
every body this library runs is a ``Scope``, which is told of each connection that is made in it.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import os
import threading
from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import AsyncExitStack, ExitStack
from contextvars import ContextVar
from typing import Any, ClassVar, Self, TypeVar
from weakref import WeakKeyDictionary

from asgiref.sync import SyncToAsync
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from django_tasklock.db.threads import to_the_end
from django_tasklock.db.transactions import joined

logger = logging.getLogger("django_tasklock")
F = TypeVar("F", bound=Callable[..., Any])

_scope: ContextVar[Scope | None] = ContextVar("tasklock_scope", default=None)


def release_connections(*using: str) -> int:
    """Give back this thread's database connections, or those to the named databases; how many there were.

    Closed, or put back into Django's pool; the next query opens another. One with an open transaction is left alone.
    Call it in the middle of a long body, before the part that does not need the database. What was read with
    ``iterator()`` and is not at its end cannot be read on.
    """
    return _close(connections.all(initialized_only=True), using)


async def arelease_connections(*using: str) -> int:
    """Do what ``release_connections`` does, for coroutines: those of the thread in which their queries run."""
    return await to_the_end(release_connections, *using)


class released_connections:  # noqa: N801  # a context manager, named like Django's atomic
    """The block holds no database connection unless it uses one, and none is left when it ends.

    ``with``, ``async with``, or a decorator for functions and coroutine functions; ``using``: aliases, by default
    all. Also what a thread of your own needs, which nobody else closes the connections of:
    ``await asyncio.to_thread(released_connections()(convert), path)``.
    """

    def __init__(self, *using: str) -> None:
        self.using = using

    def __enter__(self) -> Self:
        release_connections(*self.using)
        return self

    def __exit__(self, *how: object) -> None:
        release_connections(*self.using)

    async def __aenter__(self) -> Self:
        await arelease_connections(*self.using)
        return self

    async def __aexit__(self, *how: object) -> None:
        await arelease_connections(*self.using)

    def __call__(self, function: F) -> F:
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def wrapper(*args: Any, **kwargs: Any) -> Any:
                async with released_connections(*self.using):
                    return await function(*args, **kwargs)
        else:

            @functools.wraps(function)
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                with released_connections(*self.using):
                    return function(*args, **kwargs)

        return wrapper  # type: ignore[return-value]


LONG = 3600.0
"""Seconds, the most that a body may run by default. One that may run longer holds no connection meanwhile."""


TWICE = 2
"""How often what ends with a stack stands on it: a time limit may strike as the first is called."""


def worth_returning(connection: BaseDatabaseWrapper, long: bool) -> bool:
    """Return whether a body should not keep the connection that taking its lock has opened, until it needs one again.

    A short one would only connect twice. What comes out of a pool goes back at no cost.
    """
    return long or bool(connection.settings_dict.get("OPTIONS", {}).get("pool"))


class Scope:
    """One body, and the connections that were opened in it: seen to when it ends, whatever happens.

    Closed, those of a thread's own body where Django would at the end of a request: ``CONN_MAX_AGE`` counts.
    ``everything``: also those that its thread had before, and all are closed; ``False``: none are. ``long``: whether
    it should hold none meanwhile that it does not use. Bodies that overlap in one thread (a body calls another,
    coroutines of one loop) share its connections: the last that ends closes them.
    """

    active: ClassVar[dict[Hashable, list[Scope]]] = {}
    """Those that have begun and not ended, by thread or coroutine."""
    # Nearly every scope ends with none: a weak dict is made for the first, as that takes a fifth of a scope's time.
    opened: Mapping[BaseDatabaseWrapper, int] = {}
    """The connections that were opened in it, each with its thread."""

    def __init__(self, everything: bool | None = None, *, long: bool = False) -> None:
        self.everything = everything
        self.long = long
        self._before: Scope | None = None
        self._key: Hashable = None
        self._process = 0
        self._ended = False

    @classmethod
    def begin(cls, stack: ExitStack | AsyncExitStack, everything: bool | None = None, *, long: bool = False) -> Scope:
        """Return a new one, which notes connections from here on and ends with ``stack``."""
        scope = cls(everything, long=long)
        for _ in range(TWICE):
            if isinstance(stack, ExitStack):  # first: a time limit may strike in between
                stack.push(scope)
            else:
                stack.push_async_exit(scope.later)
        scope._begin()
        return scope

    def _begin(self) -> None:
        self._process = os.getpid()
        self._key = _where()
        self._before = _scope.get()
        self.active.setdefault(self._key, []).append(self)
        _scope.set(self)

    def note(self, found: Mapping[BaseDatabaseWrapper, int]) -> None:
        """Note connections that were opened in it, each with its thread. Any thread may."""
        own: WeakKeyDictionary[BaseDatabaseWrapper, int] = self.__dict__.setdefault("opened", WeakKeyDictionary())
        own.update(found)

    def close_idle(self) -> None:
        """Give back, before the body, what taking its lock has opened, or everything."""
        if self.everything:
            _close(connections.all(initialized_only=True))
        elif self._spare:
            _close(connection for connection in self._spare if self.opened[connection] == threading.get_ident())

    async def aclose_idle(self) -> None:
        """Do what ``close_idle`` does, for coroutines."""
        if self.everything or self._spare:
            await to_the_end(self.close_idle)

    @property
    def _spare(self) -> list[BaseDatabaseWrapper]:
        if self.everything is False:
            return []
        return [connection for connection in list(self.opened) if worth_returning(connection, self.long)]

    def __call__(self, *how: object) -> None:
        """End, for an ``ExitStack``."""
        if self._over() and (self.everything or self.opened):
            self._clear(kept=not self.everything)
        self._ended = True

    async def later(self, *how: object) -> None:
        """End, for an ``AsyncExitStack``.

        A query of a body that was cancelled may still be connecting, in a thread that cannot be: its turn comes first.
        """
        if self._over() and (self.everything or self.opened or how[1] is not None):
            await to_the_end(self._clear)
        self._ended = True

    def _over(self) -> bool:
        if self._ended or self._process != os.getpid():  # a forked child leaves the body of its parent
            return False
        if _scope.get() is self:
            _scope.set(self._before)
        peers = self.active.get(self._key, [])
        if self in peers:
            peers.remove(self)
        if not peers:
            self.active.pop(self._key, None)
        return self.everything is not False

    def _clear(self, kept: bool = False) -> None:
        if peers := self.active.get(self._key):  # they may be reading from them
            peers[0].note(self.opened)
            return
        if self.everything:
            _close(connections.all(initialized_only=True))
        here = threading.get_ident()
        _close([connection for connection, thread in list(self.opened.items()) if thread == here], kept=kept)
        mine = {id(connection) for connection in connections.all(initialized_only=True)}
        left = sorted(
            connection.alias
            for connection in list(self.opened)
            if connection.connection is not None and id(connection) not in mine
        )
        if left:
            logger.warning(
                "a body has left database connections open in threads of its own (%s): nobody else can close them;"
                " put released_connections() around what runs there",
                ", ".join(left),
            )


def _where() -> Hashable:
    """Return what bodies that overlap share: a thread, or in a coroutine the thread in which its queries run."""
    loop = asyncio._get_running_loop()
    if loop is None:
        return threading.get_ident()
    return id(loop), SyncToAsync.thread_sensitive_context.get(None)


def _close(which: Iterable[BaseDatabaseWrapper], using: tuple[str, ...] = (), *, kept: bool = False) -> int:
    closed = 0
    for connection in which:
        if connection.connection is None or (using and connection.alias not in using) or joined(connection):
            continue
        try:
            if kept:  # by CONN_MAX_AGE
                connection.close_if_unusable_or_obsolete()
            else:
                connection.close()
        except Exception as error:  # it is gone all the same, as it was when the server had dropped it
            logger.debug("database %r: while closing a connection: %r", connection.alias, error)
        closed += 1
    return closed


def _note(sender: Any = None, connection: BaseDatabaseWrapper | None = None, **details: Any) -> None:
    scope = _scope.get()
    if scope is not None and connection is not None:
        scope.note({connection: threading.get_ident()})


connection_created.connect(_note, dispatch_uid="tasklock.connections")
