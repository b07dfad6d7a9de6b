"""Release of database connections: a record of the connections that a body has opened, which are closed at its end.

Django keeps a connection per thread, and closes it at the end of a request; Celery closes those of the thread that
runs the task. Connections opened by a coroutine's queries, or by a thread that the body has started, are closed by
neither. So every body this library runs has a ``Scope``, which records each connection opened in it.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import os
import threading
from collections.abc import Callable, Hashable, Iterable
from contextvars import ContextVar
from typing import Any, ClassVar, Self, TypeVar
from weakref import WeakKeyDictionary

from asgiref.sync import SyncToAsync
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from django_tasklock.db.threads import run_to_end
from django_tasklock.db.transactions import in_callers_transaction
from django_tasklock.exceptions import TaskLockError
from django_tasklock.process import check_process

logger = logging.getLogger("django_tasklock")
F = TypeVar("F", bound=Callable[..., Any])

_scope: ContextVar[Scope | None] = ContextVar("tasklock_scope", default=None)


def release_connections(*using: str) -> int:
    """Release this thread's database connections, or those to the named databases; return how many there were.

    They are closed, or put back into Django's pool; the next query opens another. One with an open transaction is
    kept. Call it in the middle of a long body, before the part that does not need the database. A queryset's
    ``iterator()`` that is not exhausted cannot be continued.
    """
    return _close(connections.all(initialized_only=True), using)


async def arelease_connections(*using: str) -> int:
    """Do what ``release_connections`` does, for coroutines: for the thread in which their queries run."""
    return await run_to_end(release_connections, *using)


class released_connections:  # noqa: N801  # a context manager, named like Django's atomic
    """Release this thread's database connections before and after a block.

    Use it as ``with``, ``async with``, or as a decorator of functions and coroutine functions; ``using``: aliases, by
    default all. A thread of your own needs it, because nothing else closes its connections:
    ``await asyncio.to_thread(released_connections()(convert), path)``.

    Raises ``TaskLockError`` without the parentheses: the function would be taken for an alias, and never run.
    """

    def __init__(self, *using: str) -> None:
        if any(map(callable, using)):
            raise TaskLockError("what it decorates is no alias of a database: write released_connections()")
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


class Scope:
    """The database connections opened in one body, closed when it ends, however it ends.

    Those of a thread's body are closed as Django does at the end of a request: by ``CONN_MAX_AGE``. ``release``: close
    all connections of the thread, before the body and after it, also those that it had before. Bodies that overlap in
    one thread (a body calls another, coroutines of one loop) share its connections: the last one to end closes them.
    """

    active: ClassVar[dict[Hashable, list[Scope]]] = {}
    """The scopes that have begun and not ended, by thread or event loop."""

    def __init__(self, release: bool = False) -> None:
        self.release = release
        self.opened: WeakKeyDictionary[BaseDatabaseWrapper, int] = WeakKeyDictionary()
        """The connections opened in the scope, with the ids of their threads."""

    def __enter__(self) -> Self:
        self._process = os.getpid()
        self._key = _thread_or_loop()
        self._outer = _scope.get()
        self.active.setdefault(self._key, []).append(self)
        _scope.set(self)
        return self

    def close_idle(self) -> None:
        """Before the body: close what was opened for it and costs nothing to open again, or all that it may not use.

        A short body would only have to connect a second time; giving a connection back to a pool is free.
        """
        if self.release:
            _close(connections.all(initialized_only=True))
        elif self.opened:
            here = threading.get_ident()
            _close([connection for connection in self._pooled if self.opened.get(connection) == here])

    async def aclose_idle(self) -> None:
        """Do what ``close_idle`` does, for coroutines."""
        if self.release or self._pooled:
            await run_to_end(self.close_idle)

    @property
    def _pooled(self) -> list[BaseDatabaseWrapper]:
        return [one for one in list(self.opened) if one.settings_dict.get("OPTIONS", {}).get("pool")]

    def __exit__(self, *how: object) -> None:
        if self._leave() and (self.release or self.opened):
            self._close_opened(kept=not self.release)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, *how: object) -> None:
        # A query of a cancelled body may still be connecting, in a thread that cannot be cancelled: this runs after it.
        if self._leave() and (self.release or self.opened or how[1] is not None):
            await run_to_end(self._close_opened)

    def _leave(self) -> bool:
        """Leave the list of active scopes; return whether connections are to be closed."""
        check_process()  # a child leaves the body of its parent: what it closes is its own, except on SQLite
        inherited = self._process != os.getpid()
        if _scope.get() is self:
            _scope.set(self._outer)
        peers = self.active.get(self._key, [])
        if self in peers:
            peers.remove(self)
        if not peers:
            self.active.pop(self._key, None)
        return not (inherited and any(one.vendor == "sqlite" for one in connections.all(initialized_only=True)))

    def _close_opened(self, kept: bool = False) -> None:
        if peers := self.active.get(self._key):  # bodies that may be using the connections
            peers[0].opened.update(self.opened)
            return
        if self.release:
            _close(connections.all(initialized_only=True))
        here = threading.get_ident()
        _close([connection for connection, thread in list(self.opened.items()) if thread == here], kept=kept)
        own_connections = {id(connection) for connection in connections.all(initialized_only=True)}
        leaked = sorted(
            connection.alias
            for connection in list(self.opened)
            if connection.connection is not None and id(connection) not in own_connections
        )
        if leaked:
            logger.warning(
                "a body has left database connections open in threads of its own (%s), and only these threads can close"
                " them; put released_connections() around what runs there",
                ", ".join(leaked),
            )


def after_fork() -> None:
    """Forget the scopes of the parent: a fork in a body has its thread, and they are no users of its connections."""
    for key, scopes in list(Scope.active.items()):
        Scope.active[key] = [scope for scope in scopes if scope._process == os.getpid()]


def _thread_or_loop() -> Hashable:
    """Return the key that overlapping bodies share: the thread, or for a coroutine that in which its queries run."""
    loop = asyncio._get_running_loop()
    if loop is None:
        return threading.get_ident()
    return id(loop), SyncToAsync.thread_sensitive_context.get(None)


def _close(which: Iterable[BaseDatabaseWrapper], using: tuple[str, ...] = (), *, kept: bool = False) -> int:
    closed = 0
    for connection in which:
        if (
            connection.connection is None
            or (using and connection.alias not in using)
            or in_callers_transaction(connection)
        ):
            continue
        try:
            if kept:  # by CONN_MAX_AGE
                connection.close_if_unusable_or_obsolete()
            else:
                connection.close()
        except Exception as error:  # closed all the same: the server may have dropped it before
            logger.warning("database %r: while closing a connection: %r", connection.alias, error)
        closed += 1
    return closed


def _record(sender: Any = None, connection: BaseDatabaseWrapper | None = None, **details: Any) -> None:
    scope = _scope.get()
    if scope is not None and connection is not None:
        scope.opened[connection] = threading.get_ident()


# On import, not in ready(): scopes also work before Django is set up, and without the app.
connection_created.connect(_record, dispatch_uid="tasklock.connections")
