"""Counts of what happens to locks, limiters and messages: in this process first, then in one table for all processes.

``count()`` does no I/O. A thread adds the counts to the table every ten seconds, on a connection of its own, which it
closes again; the end of the process does so too. So the table is ten seconds behind, and a process that is killed takes
its last ten seconds with it. A database that is full, missing or locked costs one WARNING; the counts wait in the
process until it works again.

A count has an *event* and a *kind*: the pattern of a name, ``video:{id}``, never the name itself, because kinds are
few. An event with a duration also has the number of a histogram bucket.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import logging
import queue
import re
import sys
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from django.apps import apps
from django.db import connections, router, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Sum

from django_tasklock.conf import get_settings
from django_tasklock.db.forks import no_fork, no_fork_on
from django_tasklock.db.fresh import fresh
from django_tasklock.process import check_process

if TYPE_CHECKING:
    from django_tasklock.db.session import Session

logger = logging.getLogger("django_tasklock")

ACQUIRED: Final = "acquired"
"""A lock was granted without waiting."""
WAITED: Final = "waited"
"""A lock was granted after a wait; with the time waited."""
RELEASED: Final = "released"
"""A lock was released by its holder; with the time held."""
EXPIRED: Final = "expired"
"""A lease had run out without a release, as the next caller found, or the sweep; or its holder's process was dead."""
LOST: Final = "lost"
"""A running holder learned that it does not hold the lock any more."""
FORCED: Final = "forced"
"""A lock was taken from its holder by an operator or a sweep."""
CONFLICT: Final = "conflict"
"""A lock was busy; with what was done, ``conflict:skip``."""
TIMED_OUT: Final = "timeout"
"""The ``conflict`` suffix of a waiter that gave up after its wait timeout."""
GRANTED: Final = "limit.granted"
"""A limiter let a call through without waiting."""
GRANTED_LATE: Final = "limit.waited"
"""A limiter let a call through after a wait; with the time waited."""
REFUSED: Final = "limit.refused"
CANCELLED: Final = "limit.cancelled"
PUSHBACK: Final = "limit.pushback"
PERMIT_RELEASED: Final = "limit.released"
"""A permit was released; with the time held."""
PERMIT_EXPIRED: Final = "limit.expired"
"""As EXPIRED, of a permit: the next caller found it."""
PERMIT_FORCED: Final = "limit.forced"
PARKED: Final = "message.parked"
PROMOTED: Final = "message.promoted"
REPLACED: Final = "message.replaced"
PUT_OFF: Final = "message.put_off"
"""A message was sent again because of an error that kept its body from beginning."""
TAKEN_OVER: Final = "message.taken_over"
STALE: Final = "claim.stale"
"""A write of a claim that has been overtaken was refused."""
LATE: Final = "worker.late"
"""A worker renewed its deliveries at the broker too late, by more than half of their lease."""

BOUNDS: Final = (5, 25, 100, 500, 1_000, 5_000, 15_000, 60_000, 300_000, 900_000, 3_600_000)
"""Upper bounds of the buckets of every histogram, in milliseconds; longer durations are in one more bucket."""
OTHERS: Final = "(others)"
"""The kind under which events are counted once there are too many kinds."""
MOST_KINDS: Final = 200
"""The most kinds that one process tells apart."""
LONGEST_KIND: Final = 100
"""The maximum length of a kind in ASCII, where another character is an escape such as ``\\u5f71``."""
MARK: Final = 9
"""How many of those characters are a hash, in a kind that was cut."""
HOURS_KEPT: Final = 48
"""For how many hours the counts of each single hour are kept; older ones are added up, as hour 0."""

INTERVAL = 10.0  # seconds between two flushes
EXIT_TIMEOUT = 5.0  # seconds by which a flush may delay the end of a process
MOST_EVENTS = 10_000  # events that are added up at once at the latest, so that they take no memory
ROWS = 100  # rows of one statement: SQLite allows few parameters
HOUR = 3600


class Count(NamedTuple):
    """How often an event of a kind happened, by bucket. ``bucket``: 0 for an event without a duration."""

    event: str
    kind: str
    bucket: int
    number: int
    milliseconds: int
    """The sum of the durations."""


def count(event: str, kind: str, milliseconds: float | None = None, *, number: int = 1) -> None:
    """Count an event of a kind, with its duration if it has one; or ``number`` of them. It does no I/O.

    It raises nothing of its own, and catches nothing: that may be a time limit, which must stop the caller.
    """
    if get_settings().METRICS:
        check_process()
        _process.add(event, kind, milliseconds, number)


def flush(seconds: float = EXIT_TIMEOUT) -> bool:
    """Add what this process has counted to the table, waiting at most ``seconds``. Return whether it is there."""
    check_process()
    return _process.flush(seconds)


def read_totals() -> list[Count]:
    """Return all counts, added up over all hours, by one query. They never decrease.

    Raises ``BackendUnavailable``, and ``ImproperlyConfigured`` if the table is missing.
    """

    def verb(alias: str, again: bool) -> list[Count]:
        rows = _rows(alias).values_list("event", "kind", "bucket").order_by()
        sums = rows.annotate(total=Sum("number"), time=Sum("milliseconds"))
        return [Count(event, _unescaped(kind), *map(int, rest)) for event, kind, *rest in sums]

    return _session().run(verb, write=False)


def read_hours(number: int = 24) -> Mapping[int, list[Count]]:
    """Return the counts of the last hours, the current one included, by the beginning of the hour.

    In seconds since 1970; hours without counts are left out. Raises as ``read_totals`` does.
    """
    first = _this_hour() - (number - 1) * HOUR

    def verb(alias: str, again: bool) -> Mapping[int, list[Count]]:
        found: dict[int, list[Count]] = {}
        rows = _rows(alias).filter(hour__gte=first).order_by("hour")
        for hour, event, kind, *rest in rows.values_list(*_COLUMNS):
            found.setdefault(hour, []).append(Count(event, _unescaped(kind), *rest))
        return found

    return _session().run(verb, write=False)


@lru_cache(maxsize=1024)
def clean_kind(kind: str) -> str:
    """Return ``kind`` as it is counted: printable, without backslashes, and at most 100 characters in ASCII.

    A longer one is cut and ends in a hash of the whole, so that two of them stay distinct.
    """
    text = "".join(char if char.isprintable() else " " for char in kind).translate(_HARMLESS).strip()
    if len(_in_ascii(text)) <= LONGEST_KIND:
        return text
    kept = ""
    for char in text:
        if len(_in_ascii(kept + char)) > LONGEST_KIND - MARK:
            break
        kept += char
    return kept + "~" + hashlib.sha256(kind.encode("utf-8", "surrogatepass")).hexdigest()[: MARK - 1]


_HARMLESS = str.maketrans({'"': "'", "\\": "/", "|": "/"})
_ESCAPED = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))")
_COLUMNS = ("hour", "event", "kind", "bucket", "number", "milliseconds")
_KEY = _COLUMNS[:4]


def _in_ascii(text: str) -> str:
    """Return a kind as the column has it, which may be of any character set."""
    return text.encode("ascii", "backslashreplace").decode()


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1] or found[2] or found[3], 16)), text)


def bucket_of(milliseconds: float) -> int:
    """Return the number of the bucket for a duration."""
    return bisect_left(BOUNDS, milliseconds)


class ProcessCounts:
    """What this process has counted and not added to the table yet, and the thread that does so."""

    def __init__(self) -> None:
        # A deque and a queue in C: an exception from a signal handler leaves neither half locked, and the garbage
        # collector, which may release a lock anywhere, may count while another event is being added.
        self._events: deque[tuple[str, str, float | None, int]] = deque()
        self._sums: dict[tuple[str, str, int], list[int]] = {}
        self.kinds: set[str] = set()
        """Kinds that were counted; ``MOST_KINDS`` have counts of their own."""
        self._adding = threading.RLock()
        self._wanted: queue.SimpleQueue[threading.Event] = queue.SimpleQueue()
        self._starting = threading.RLock()
        self._thread: threading.Thread | None = None
        self._of_tests = False
        self._folded = 0  # the hour in which this process has last added up old ones
        self._has_warned = False

    def add(self, event: str, kind: str, milliseconds: float | None, number: int) -> None:
        """Remember an event."""
        self._events.append((event, kind, milliseconds, number))
        if len(self._events) >= MOST_EVENTS and self._adding.acquire(blocking=False):
            try:
                self._add_up()
            finally:
                self._adding.release()
        if self._thread is None and _has_table() and not _in_tests():
            self._start()

    def take(self) -> dict[tuple[str, str, int], list[int]]:
        """Return the sums of all events so far, and begin at zero."""
        with self._adding:
            self._add_up()
            sums, self._sums = self._sums, {}
        return sums

    def put_back(self, sums: Mapping[tuple[str, str, int], list[int]]) -> None:
        """Add sums that could not be written to those that wait."""
        with self._adding:
            for key, (number, milliseconds) in sums.items():
                kept = self._sums.setdefault(key, [0, 0])
                kept[0] += number
                kept[1] += milliseconds

    def _add_up(self) -> None:
        """Add the events to the sums. The caller has ``_adding``."""
        with contextlib.suppress(IndexError):  # that was the last one
            while True:
                event, kind, milliseconds, number = self._events.popleft()
                if kind not in self.kinds:
                    if len(self.kinds) >= MOST_KINDS:
                        kind = OTHERS
                    self.kinds.add(kind)
                key = event, kind, 0 if milliseconds is None else bucket_of(milliseconds)
                sums = self._sums.setdefault(key, [0, 0])
                sums[0] += number
                sums[1] += round(milliseconds or 0)

    def _start(self) -> None:
        with self._starting:
            if self._thread is None:
                self._of_tests = _in_tests()
                thread = threading.Thread(target=self._run, name="tasklock-counts", daemon=True)
                with contextlib.suppress(RuntimeError):  # the process is ending
                    thread.start()
                    self._thread = thread

    def _run(self) -> None:
        while True:
            waiting = []
            with contextlib.suppress(queue.Empty):
                waiting.append(self._wanted.get(timeout=INTERVAL))
            if waiting or not _in_tests():
                self._write()
            for written in waiting:
                written.set()

    def flush(self, seconds: float) -> bool:
        """Let the thread write now, and wait for that. Return whether nothing is left."""
        if self._thread is None:
            if not (self._events or self._sums):
                return True
            self._start()
            if self._thread is None:
                return False
        written = threading.Event()
        self._wanted.put(written)
        return written.wait(seconds) and not (self._events or self._sums)

    def flush_at_exit(self) -> None:
        """Write what is left. That of tests is forgotten: their database is gone, and a real one is there."""
        if self._thread is not None and not self._of_tests:
            self.flush(EXIT_TIMEOUT)

    def _write(self) -> None:
        """Add the sums to the table. If that fails they wait for the next time."""
        sums = self.take()
        if not sums:
            return
        try:
            with _connection() as connection:
                hour = _this_hour()
                _add(
                    connection,
                    {(hour, event, _in_ascii(kind), bucket): sums[event, kind, bucket] for event, kind, bucket in sums},
                )
                sums = {}
                self._has_warned = False
                if self._folded != hour:
                    self._folded = hour
                    _fold(connection, hour - HOURS_KEPT * HOUR)
        except Exception as error:
            self.put_back(sums)
            if not self._has_warned:
                self._has_warned = True
                logger.warning("counts: the table could not be written, they wait in this process: %s", error)


_process = ProcessCounts()
atexit.register(_process.flush_at_exit)


def forget() -> None:
    """Forget what this process has counted and not added to the table yet, and which kinds there were."""
    _process.take()
    _process.kinds.clear()


def after_fork() -> None:
    """Begin anew, without the counts of the parent and without a thread."""
    _process.__init__()  # type: ignore[misc]


def pending() -> list[Count]:
    """Return what this process has counted and not added to the table yet."""
    sums = _process.take()
    _process.put_back(sums)
    return [Count(*key, *found) for key, found in sorted(sums.items())]


def _this_hour() -> int:
    now = int(time.time())
    return now - now % HOUR


def _in_tests() -> bool:
    """Whether Django's test environment is set up: then nothing is written that no test has asked for."""
    return hasattr(sys.modules.get("django.core.mail"), "outbox")


def _has_table() -> bool:
    """Whether this app is installed, so that there may be a table."""
    return apps.ready and apps.is_installed("django_tasklock")


@contextlib.contextmanager
def _connection() -> Iterator[BaseDatabaseWrapper]:
    """Yield this thread's connection to the database with the table, and close it afterwards."""
    with no_fork():  # a child that is forked during an import could never import the same
        from django_tasklock.models import EventCount

        connection = connections[router.db_for_write(EventCount)]
    with no_fork_on(connection):
        try:
            yield connection
        finally:
            connection.close()


def _add(connection: BaseDatabaseWrapper, rows: Mapping[tuple[Any, ...], Sequence[int]]) -> None:
    """Add numbers and milliseconds to these rows, inserting those that do not exist, by one statement for each 100.

    All or none of them.

    Django's ``bulk_create(update_conflicts=True)`` can set a column, but not add to it. The rows are sorted, so that
    two processes never wait for each other.
    """
    from django_tasklock.models import EventCount

    quote = connection.ops.quote_name
    table, (number, time_sum) = quote(EventCount._meta.db_table), map(quote, _COLUMNS[4:])
    if connection.vendor == "mysql":
        added = f"{number} = {number} + VALUES({number}), {time_sum} = {time_sum} + VALUES({time_sum})"
        conflict = f"ON DUPLICATE KEY UPDATE {added}"
    else:
        added = ", ".join(f"{one} = {table}.{one} + excluded.{one}" for one in (number, time_sum))
        conflict = f"ON CONFLICT ({', '.join(map(quote, _KEY))}) DO UPDATE SET {added}"
    new = sorted(rows.items())
    with transaction.atomic(using=connection.alias), connection.cursor() as cursor:
        for start in range(0, len(new), ROWS):
            part = [(*key, *found) for key, found in new[start : start + ROWS]]
            marks = ", ".join([f"({', '.join(['%s'] * len(_COLUMNS))})"] * len(part))
            columns = ", ".join(map(quote, _COLUMNS))
            # Only the names of our own table and columns are in the text.
            sql = f"INSERT INTO {table} ({columns}) VALUES {marks} {conflict}"  # noqa: S608
            cursor.execute(sql, [value for row in part for value in row])


def _fold(connection: BaseDatabaseWrapper, before: int) -> None:
    """Add the rows of the hours before ``before`` to those of hour 0, in one transaction, so that no sum changes.

    Where two processes do so at once, the second one deletes fewer rows than it has read, and undoes its part.
    """
    old = _rows(connection.alias).filter(hour__gt=0, hour__lt=before)
    found = list(old.order_by("id").values_list("id", *_COLUMNS[1:])[: 20 * ROWS])
    if not found:
        return
    rows: dict[tuple[Any, ...], Sequence[int]] = {}
    for _, event, kind, bucket, number, milliseconds in found:
        key = 0, event, kind, bucket
        known = rows.get(key, (0, 0))
        rows[key] = known[0] + number, known[1] + milliseconds
    with transaction.atomic(using=connection.alias):
        deleted, ids = 0, [row[0] for row in found]
        for start in range(0, len(ids), ROWS):
            deleted += _rows(connection.alias).filter(id__in=ids[start : start + ROWS])._raw_delete(connection.alias)
        if deleted != len(ids):
            transaction.set_rollback(True, using=connection.alias)
            return
        _add(connection, rows)


def _rows(alias: str) -> Any:
    from django_tasklock.models import EventCount

    return fresh(EventCount._base_manager.using(alias))


def _session() -> Session:
    from django_tasklock.db.session import Session
    from django_tasklock.models import EventCount

    return Session(EventCount, "count")
