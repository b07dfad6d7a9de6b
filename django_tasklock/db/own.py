"""Connections that a thread of this package has for itself, whatever others do with Django's pool.

Bodies may hold every connection of a pool for as long as they run, and all that the server accepts. What keeps their
leases must not wait for one of these: its connection is not of the pool, and stays open while it is needed.

Only with PostgreSQL: Django has no pool for MySQL, and SQLite connects to no server. There each round connects anew.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress
from weakref import WeakSet

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from django_tasklock.db.connections import release_connections
from django_tasklock.db.reconnect import close_dropped
from django_tasklock.logs import log

SILENCE = 10_000
"""Milliseconds until a server that does not even acknowledge a statement counts as gone, as after a failover. A kept
connection would wait for a quarter of an hour, where a new one is refused."""

_own: WeakSet[BaseDatabaseWrapper] = WeakSet()


def is_own(connection: BaseDatabaseWrapper) -> bool:
    """Return whether it is such a connection."""
    return connection in _own


class OwnConnections:
    """The connections of one thread, which calls the methods: ``begin`` and ``end`` before and after each round."""

    def __init__(self) -> None:
        self.open: set[str] = set()
        """The aliases of the databases to which a connection may be open."""

    def begin(self, aliases: Iterable[str]) -> None:
        """Let the queries of this round to these databases use own connections, none of them a dropped one."""
        for alias in aliases:
            with suppress(Exception):  # each query says what is wrong with the settings
                close_dropped(self._connection(alias))

    def end(self, needed: set[str]) -> None:
        """Keep the connections to these databases, after opening those that are missing, and close all others."""
        for alias in needed - self.open:  # where it was queried, that has opened it, or has failed
            try:
                connection = self._connection(alias)
                if is_own(connection):
                    connection.ensure_connection()
            except Exception as error:  # the other databases get their turn
                log(logging.WARNING, "heartbeat: it has no connection to database %r yet: %s", alias, error)
        for alias in list(self.open):
            connection = connections[alias]
            if alias in needed and is_own(connection) and connection.connection is not None:
                continue
            release_connections(alias)
            self.open.discard(alias)
            if is_own(connection):
                del connections[alias]  # the settings may be others next time

    def _connection(self, alias: str) -> BaseDatabaseWrapper:
        """Return the connection that this thread uses from now on: its own, except where there are none."""
        connection = connections[alias]
        self.open.add(alias)
        if connection.vendor != "postgresql" or is_own(connection):
            return connection
        connection.close()
        options = {"tcp_user_timeout": SILENCE, **connection.settings_dict["OPTIONS"]}
        options.pop("pool", None)
        own: BaseDatabaseWrapper = type(connection)({**connection.settings_dict, "OPTIONS": options}, alias)
        _own.add(own)
        connections[alias] = own
        return own
