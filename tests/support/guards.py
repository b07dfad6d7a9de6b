"""Guards, second connections, databases that hang up, and processes that claim one row."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

from django.db import OperationalError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import F, Q
from django.dispatch import Signal

from django_tasklock import Claim, StateGuard, TaskLock
from django_tasklock.celery.task_modules import import_task_modules
from django_tasklock.guards.guard import Guarded, registered, replace_registered
from tests.support.stores import eventually

__all__ = [
    "AGAIN",
    "GUARD",
    "MEMORY",
    "ONCE",
    "answer_lost",
    "database_hangs_up",
    "elsewhere",
    "end_session",
    "heard",
    "held",
    "held_by_another",
    "in_threads",
    "locked_row",
    "new_token",
    "no_guards",
    "only_guards",
    "raw_connection",
    "states",
    "take",
]

T = TypeVar("T")

MEMORY = {"BACKEND": "django_tasklock.backends.memory.MemoryBackend"}
"""For tests to which it is all the same where the lock is."""

_OPEN = ["uploading", "processing", "transcoding"]
GUARD = StateGuard(
    claim_from=_OPEN, exclude=Q(hls_file__isnull=False), claim_as="processing", done="ready", failed="failed"
)
"""As in the design: a row that was being worked on may be claimed again."""
ONCE = StateGuard(claim_from=["uploading"], claim_as="processing", done="ready", failed="failed")
"""A row that is being worked on may not be claimed: a claim cannot be repeated by accident."""
AGAIN = StateGuard(claim_from=[*_OPEN, "ready"], claim_as="processing", done="ready")
"""There is always something to claim: for races."""


def no_guards() -> None:
    """Let no guard be known, nor become so: those of task modules are registered as an app first asks for them."""
    _import_what_sweeps_import()
    replace_registered([])


def _import_what_sweeps_import() -> None:
    """Now and not in the midst of a test. A thread of its own may have another app as its current one."""
    import_task_modules()
    thread = threading.Thread(target=import_task_modules)
    thread.start()
    thread.join()


@contextmanager
def only_guards(guards: Iterable[Guarded]) -> Iterator[None]:
    """Let only these guards be known during the block: modules of tests register theirs as they are imported."""
    _import_what_sweeps_import()
    before = registered()
    replace_registered(guards)
    yield
    replace_registered(before)


def new_token() -> str:
    """A token as locks make them."""
    return os.urandom(16).hex()


def take(row: Any, guard: StateGuard = GUARD) -> Claim:
    """A claim on the row, with a token of its own."""
    return Claim.take(type(row), row.pk, guard, new_token())


def states(row: Any) -> tuple[Any, ...]:
    """What the database says now: status, progress and, where there is one, epoch."""
    row.refresh_from_db()
    return (row.status, row.progress, *([row.lock_epoch] if hasattr(row, "lock_epoch") else []))


@contextmanager
def heard(signal: Signal, sender: str | None = None) -> Iterator[list[dict[str, Any]]]:
    """What a signal's receivers were told meanwhile; of one ``sender``, if that is given: what happened to another
    test's lock may be told while this one runs, by a thread that was started for it."""
    told: list[dict[str, Any]] = []

    def receiver(signal: Signal, **details: Any) -> None:
        if sender in (None, details["sender"]):
            told.append(details)

    signal.connect(receiver, weak=False)
    try:
        yield told
    finally:
        signal.disconnect(receiver)


def elsewhere(work: Callable[[], T], seconds: float = 60) -> T:
    """``work()`` in a thread, and so on a database connection, of its own; its result or its error."""
    ended: dict[str, Any] = {}

    def run() -> None:
        try:
            ended["value"] = work()
        except BaseException as error:
            ended["error"] = error
        finally:
            connections.close_all()

    thread = threading.Thread(target=run, name="elsewhere")
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), f"not done within {seconds} s"
    if "error" in ended:
        raise ended["error"]
    return ended["value"]  # type: ignore[no-any-return]


def in_threads(number: int, work: Callable[[], T]) -> list[T]:
    """What ``work()`` returns in so many threads that begin together, each with a database connection of its own."""
    together = threading.Barrier(number, timeout=60)

    def run() -> T:
        together.wait()
        try:
            return work()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(number) as pool:
        parts = [pool.submit(run) for _ in range(number)]
        return [part.result(120) for part in parts]


def held(name: str) -> bool:
    """Whether anybody has the lock."""
    return TaskLock(name).locked()


@contextmanager
def held_by_another(name: str, **options: Any) -> Iterator[None]:
    """Another thread has the lock meanwhile."""
    lock, ready, may_end = TaskLock(name, **options), threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            ready.set()
            may_end.wait(60)

    thread = threading.Thread(target=hold, name="another")
    thread.start()
    try:
        assert ready.wait(60)
        yield
    finally:
        may_end.set()
        thread.join(60)


@contextmanager
def locked_row(*rows: Any, write: Callable[[], object] | None = None) -> Iterator[Callable[[], None]]:
    """Another session has the rows locked in an open transaction, on SQLite the file; yield what ends that.

    ``write``: what it does in that transaction instead of writing to the rows.
    """
    ready, may_end = threading.Event(), threading.Event()

    def hold() -> None:
        with transaction.atomic():
            if write is not None:
                write()
            else:
                for row in rows:
                    type(row).objects.filter(pk=row.pk).update(progress=F("progress"))
            ready.set()
            may_end.wait(300)

    thread = threading.Thread(target=lambda: elsewhere(hold, 330), name="locking")
    thread.start()
    try:
        assert ready.wait(60)
        yield may_end.set
    finally:
        may_end.set()
        thread.join(60)


def raw_connection() -> Any:
    """The driver's connection of this thread; ``None`` if it has none."""
    return connections["default"].connection


@contextmanager
def database_hangs_up() -> Iterator[None]:
    """The server has dropped this thread's connection. SQLite has no server: what Django sees of one is acted."""
    connection = connections["default"]
    connection.ensure_connection()
    dead = connection.connection
    if connection.vendor == "sqlite":
        with _acted(connection, dead):
            yield
        return
    elsewhere(lambda: _kill(connections["default"], dead))
    yield


def _kill(other: BaseDatabaseWrapper, dead: Any) -> None:
    with other.cursor() as cursor:
        if other.vendor == "postgresql":
            cursor.execute("SELECT pg_terminate_backend(%s, 10000)", [dead.info.backend_pid])
            assert cursor.fetchone() == (True,)
        else:
            end_session(cursor, dead.thread_id())


def end_session(cursor: Any, session: int) -> None:
    """``KILL`` of MySQL and MariaDB, which answer before it is done: until then it keeps what it has locked."""
    cursor.execute(f"KILL {session}")

    def ended() -> bool:
        cursor.execute("SELECT 1 FROM information_schema.processlist WHERE id = %s", [session])
        return cursor.fetchone() is None

    eventually(ended)


@contextmanager
def _acted(connection: BaseDatabaseWrapper, dead: Any) -> Iterator[None]:
    def execute(execute: Any, sql: Any, params: Any, many: bool, context: Any) -> Any:
        if connection.connection is dead:
            raise OperationalError("server closed the connection unexpectedly")
        return execute(sql, params, many, context)

    connection.is_usable = lambda: connection.connection is not dead  # type: ignore[method-assign]
    try:
        with connection.execute_wrapper(execute):
            yield
    finally:
        del connection.is_usable


@contextmanager
def answer_lost(to: str) -> Iterator[list[str]]:
    """The first statement that begins with ``to``, or the first ``COMMIT``, is done, and the session killed before its
    answer arrives."""
    connection: Any = connections["default"]
    lost: list[str] = []
    with ExitStack() as stack:

        def lose(what: str) -> None:
            lost.append(what)
            stack.enter_context(database_hangs_up())
            raise OperationalError("server closed the connection unexpectedly")

        def execute(execute: Any, sql: Any, params: Any, many: bool, context: Any) -> Any:
            result = execute(sql, params, many, context)
            if not lost and sql.startswith(to):
                lose(sql)
            return result

        def commit() -> None:
            type(connection)._commit(connection)
            if not lost and to == "COMMIT":
                lose("COMMIT")

        connection._commit = commit
        stack.callback(delattr, connection, "_commit")
        stack.enter_context(connection.execute_wrapper(execute))
        yield lost
