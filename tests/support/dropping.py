"""Databases that drop their clients for good: killed sessions, dead pools, counted writes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import OperationalError, connection, connections
from django.db.utils import Error

from tests.support.guards import end_session
from tests.testapp.models import Note, Video

__all__ = ["counted", "kill_all_others", "unreachable"]


@contextmanager
def unreachable(times: int, says: str = "connection refused") -> Iterator[list[int]]:
    """The next ``times`` connections that this thread wants to make are refused."""
    refused: list[int] = []
    wrapper: Any = connections["default"]
    plain = wrapper.get_new_connection

    def get_new_connection(params: Any) -> Any:
        if len(refused) < times:
            refused.append(len(refused))
            raise OperationalError(says)
        return plain(params)

    wrapper.get_new_connection = get_new_connection
    try:
        yield refused
    finally:
        del wrapper.get_new_connection


def kill_all_others() -> int:
    """Terminate every session of the test database but this thread's; how many."""
    with connection.cursor() as cursor:
        if connection.vendor == "mysql":
            others = "FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()"
            cursor.execute(f"SELECT id {others}")
            sessions = cursor.fetchall()
            for (session,) in sessions:
                with contextlib.suppress(Error):  # it has ended by itself
                    end_session(cursor, session)
            return len(sessions)
        cursor.execute(
            "SELECT count(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        return int(cursor.fetchone()[0])


@contextmanager
def counted() -> Iterator[None]:
    """A trigger notes every UPDATE that leaves a video ready or failed: ``Note`` has one row for each."""
    table, notes = Video._meta.db_table, Note._meta.db_table
    note = f"INSERT INTO {notes} (video_id, text) VALUES (NEW.id, NEW.status)"
    trigger = f"CREATE TRIGGER count_writes AFTER UPDATE ON {table} FOR EACH ROW "
    ended = "NEW.status IN ('ready', 'failed')"
    if connection.vendor == "postgresql":
        body = f"$$ BEGIN {note}; RETURN NEW; END $$"
        function = f"CREATE FUNCTION count_writes() RETURNS trigger LANGUAGE plpgsql AS {body}"
        make = [function, f"{trigger} WHEN ({ended}) EXECUTE FUNCTION count_writes()"]
        drop = [f"DROP TRIGGER count_writes ON {table}", "DROP FUNCTION count_writes()"]
    elif connection.vendor == "mysql":
        make, drop = [f"{trigger} BEGIN IF {ended} THEN {note}; END IF; END"], ["DROP TRIGGER count_writes"]
    else:
        make, drop = [f"{trigger} WHEN {ended} BEGIN {note}; END"], ["DROP TRIGGER count_writes"]
    _run(make)
    try:
        yield
    finally:
        with contextlib.suppress(Error):
            connection.close()
        _run(drop)


def _run(statements: list[str]) -> None:
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
