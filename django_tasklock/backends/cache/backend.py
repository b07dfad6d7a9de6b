"""The operations of a store of locks, by ``add``, ``get``, ``touch`` and ``delete``."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from django.core.cache import BaseCache
from django.core.exceptions import ImproperlyConfigured

from django_tasklock.backends.cache.alias import PrivateCache, cache_key
from django_tasklock.backends.contract.codec import holder_of, json_object
from django_tasklock.backends.contract.lists import Counts, Which
from django_tasklock.backends.contract.refusals import (
    FULL,
    MISTAKES,
    NO_ROOM,
    NOBODY,
    OUTAGES,
    chain,
    is_local_fault,
    is_mistake,
)
from django_tasklock.backends.contract.stores import DAY, LockStore
from django_tasklock.conf import Settings
from django_tasklock.db.reconnect import close_dropped, serves_nobody
from django_tasklock.db.transactions import durable, in_callers_transaction
from django_tasklock.exceptions import BackendUnavailable, TaskLockError
from django_tasklock.types import (
    AcquireRequest,
    Busy,
    Grant,
    Holder,
    Record,
    Released,
    Renewal,
    RenewalResult,
    monotonic,
)

FENCE_TTL = 86_400  # seconds for which the last fence of a name is remembered
MARGIN = 0.1  # the last part of a lease, at most a second, in which the lock is not deleted any more
REMEMBERED = 20_000  # leases whose local deadline is remembered
_REFUSES = frozenset({"AuthenticationError", "AuthorizationError", "InvalidResponse", "ResponseError"})
"""Names of errors of Redis clients: the server refuses this client or command. It serves others, which may hold the
lock."""
_SERVES_NO_CLIENT = frozenset({"BusyLoadingError", "ClusterDownError"})
"""Names of errors of a server that answers, but serves no client."""
_CONNECTING = re.compile(r"Error (-?\d+) connecting to ")
"""How redis-py says that a connection could not be made."""


class CacheBackend(LockStore):
    """Locks in the cache alias of ``LOCATION``. They cannot be listed.

    Recorded times are those of the clients' clocks and only for people: the cache itself expires the entries. The fence
    grows as long as the cache keeps the last one; after a loss of data it starts from a client's clock, and is only as
    good as that. A lease of 1.5 s lasts 2 s or more, because every cache understands whole seconds only. With a table
    as the cache, a lock is neither acquired nor extended inside ``atomic()``.
    """

    where = "django"

    def __init__(self, settings: Settings) -> None:
        self.private = PrivateCache(settings.location)
        self._prefix = settings.prefix
        self.leases = KeyDeadlines()
        self.across_processes = not self.private.per_process

    def acquire(self, request: AcquireRequest) -> Grant | Busy:
        key = self._key(request.name)
        self._refuse_uncommitted(request.name)
        with self._asking(request.name) as cache:
            for _ in range(2):
                sent, now = monotonic(), time.time_ns() // 1000
                value = _value(request, now)
                if cache.add(key, json.dumps(value), self.private.seconds(request.ttl_ms)):
                    self.leases.start(request.token, sent, request.ttl_ms)
                    return self._grant(cache, request, value)
                found = _decoded(cache.get(key))
                if found is not None and request.supersedes and found.get("token") == request.supersedes:
                    cache.set(key, json.dumps(value), self.private.seconds(request.ttl_ms))  # not atomic
                    self.leases.start(request.token, sent, request.ttl_ms)
                    return self._grant(cache, request, value)
                if found is not None and found.get("token") != request.token:
                    record = _record(request.name, found)
                    return Busy(record, record.ttl)
                if found is not None and self._renew(cache, Renewal(request.name, request.token, request.ttl_ms)):
                    return self._grant(cache, request, found)
            self._probe(cache, request.name)
        return Busy(None, 0)  # the entry was there for add() and missing for get(), twice: other holders take turns

    def _grant(self, cache: BaseCache, request: AcquireRequest, value: dict[str, Any]) -> Grant:
        """Return the grant of a lock that was just acquired, with a fence above the last: only its holder writes it."""
        key, fence = self._key(request.name, "-fence:"), int(value["fence"])
        last = cache.get(key)
        if last == fence:
            return Grant(fence, request.ttl_ms)
        if isinstance(last, int) and last > fence:
            fence = value["fence"] = last + 1
            cache.set(self._key(request.name), json.dumps(value), self.private.seconds(request.ttl_ms))
        cache.set(key, fence, FENCE_TTL)
        return Grant(fence, request.ttl_ms)

    def release(self, name: str, token: str) -> Released:
        """Release the lock, except that a lease which is about to end or has ended is left to expire in the cache."""
        key = self._key(name)
        with self._asking(name) as cache:
            found = _decoded(cache.get(key))
            if found is None and self.leases.certain(token):
                self._probe(cache, name)
            if found is not None and found.get("token") != token:
                outcome = Released.NOT_YOURS
            elif found is not None and self.leases.certain(token, MARGIN) is not False and cache.delete(key):
                outcome = Released.RELEASED
            else:
                outcome = Released.GONE
        self.leases.end(token)
        return outcome

    def extend(self, name: str, token: str, ttl: int, hold: int) -> bool:
        key = self._key(name)
        self._refuse_uncommitted(name)
        with self._asking(name) as cache:
            found = _decoded(cache.get(key)) if self._renew(cache, Renewal(name, token, ttl)) else None
            if found is None or found.get("token") != token:
                return False
            now = time.time_ns() // 1_000_000
            found |= {"until": now + hold, "ends": now + ttl, "ttl": ttl}
            cache.set(key, json.dumps(found), self.private.seconds(ttl))
        return True

    def renew(self, batch: Sequence[Renewal]) -> list[RenewalResult]:
        with self._asking(None) as cache:
            return [self._renew(cache, item) for item in batch]

    def _renew(self, cache: BaseCache, item: Renewal) -> RenewalResult:
        """Read, touch, read: a token that is there after the touch was there when its entry was touched."""
        sent, key, note = monotonic(), self._key(item.name), self._key(item.name, "-asked:")
        found = cache.get(key)
        if found is None and self.leases.certain(item.token):
            self._probe(cache, item.name)
        if not _holds(found, item.token) or self.leases.certain(item.token) is False:
            return RenewalResult.LOST
        cache.touch(key, self.private.seconds(item.ttl))
        values = cache.get_many([key, note])
        if not _holds(values.get(key), item.token):
            return RenewalResult.LOST
        self.leases.start(item.token, sent, item.ttl)
        return RenewalResult.ASKED if _holds(values.get(note), item.token) else RenewalResult.RENEWED

    def get(self, name: str) -> Record | None:
        key, note = self._key(name), self._key(name, "-asked:")
        with self._asking(name) as cache:
            values = cache.get_many([key, note])
            if values.get(key) is None:  # free, or an outage that the client hides
                self._probe(cache, name)
        found, request = _decoded(values.get(key)), _decoded(values.get(note))
        if found is None:
            return None
        record = _record(name, found)
        if request and request.get("token") == record.token and isinstance(request.get("asked"), int):
            record = replace(record, asked=request["asked"])
        return record

    def records(self, which: Which = "live", *, offset: int = 0, limit: int = 1000) -> list[Record]:
        """Raise ``TaskLockError``, always."""
        raise _cannot_list()

    def counts(self) -> Counts:
        """Raise ``TaskLockError``, always."""
        raise _cannot_list()

    def ask_release(self, name: str, token: str) -> bool:
        with self._asking(name) as cache:
            found = _decoded(cache.get(self._key(name)))
            if found is None or not token or found.get("token") != token:
                return False
            record = _record(name, found)
            # Under a key of its own: the entry of the lock may belong to the next holder by now.
            note, ends = {"token": token, "asked": record.now}, max(1000, record.until - record.now)
            if not _holds(cache.get(self._key(name, "-asked:")), token):  # not the request to an earlier holder
                cache.set(self._key(name, "-asked:"), json.dumps(note), self.private.seconds(ends))
        return True

    def remove(self, name: str, token: str | None = None) -> Record | None:
        """Read, then delete: the lock may have changed hands between the two."""
        key = self._key(name)
        with self._asking(name) as cache:
            found = _decoded(cache.get(key))
            if found is None or token not in (None, found.get("token")) or not cache.delete(key):
                return None
        return _record(name, found)

    def tally(self, name: str, number: int = 1, *, ttl: int = DAY) -> int:
        """Read, then write: of two additions at once one may be lost."""
        key = self._key(name, "-tally:")
        with self._asking(name) as cache:
            counter = int(cache.get(key) or 0) + number
            if number:
                cache.set(key, counter, self.private.seconds(ttl))
        return counter

    @property
    def database(self) -> str | None:
        database = self.private.database
        return None if database is None else database.alias

    def close(self) -> None:
        self.private.close()

    def close_idle(self) -> None:
        database = self.private.database
        if database is not None and not database.in_atomic_block:
            database.close()

    def _key(self, name: str, kind: str = ":") -> str:
        return cache_key(self._prefix.removesuffix(":") + kind + name)

    def _refuse_uncommitted(self, name: str) -> None:
        """Raise ``TransactionOpen`` if the cache is a table and a rollback would undo what is written there now."""
        database = self.private.database
        if database is not None and in_callers_transaction(database):
            with durable(database.alias, "change the cache's table", name):
                pass  # the transaction of a TestCase

    @contextmanager
    def _asking(self, name: str | None) -> Iterator[BaseCache]:
        try:
            yield self.private.cache
        except (TaskLockError, ImproperlyConfigured):
            raise
        except Exception as error:  # each client has its own classes of errors
            down = self._is_down(error)
            what = "could not be asked" if down or is_local_fault(error) else "refused"
            raise BackendUnavailable(
                f"the cache {self.private.alias!r} {what} ({type(error).__name__}: {error})", name=name, down=down
            ) from error

    def _is_down(self, error: BaseException) -> bool:
        """Return whether the cache serves no client at all, as far as is known.

        If the error shows neither an outage nor a refusal, a key is read to find out; for a database, whose table may
        be missing, a connection is opened.
        """
        if isinstance(error, MISTAKES) or type(error).__name__ == "RedisError":  # an option that its client refuses
            return False
        for one in chain(error):
            kinds = {kind.__name__ for kind in type(one).__mro__}
            if kinds & _SERVES_NO_CLIENT or str(one).startswith(NOBODY):
                return True
            if kinds & _REFUSES or FULL in str(one):  # to redis-py some of these are lost connections
                return False
            if isinstance(one, OSError):
                return not is_mistake(one) and one.errno not in NO_ROOM
            if connecting := _CONNECTING.match(str(one)):  # django-redis has lost the cause
                return int(connecting[1]) in OUTAGES
        database = self.private.database
        if database is not None:
            close_dropped(database)  # or each later verb of this thread would find it dropped
        try:
            self.private.cache.get(self._key("", "-probe:"))
        except Exception as refusal:
            return database is None or serves_nobody(database, refusal)
        return False

    def _probe(self, cache: BaseCache, name: str | None) -> None:
        """Raise ``BackendUnavailable`` if the cache stores nothing: some clients report an outage as a missing key."""
        key = self._key(os.urandom(16).hex(), "-probe:")
        if not cache.add(key, 1, 5):
            message = f"the cache {self.private.alias!r} stores nothing, and its client hides why"
            table = self.private.database is not None
            if table:
                cache.get(key)  # which hides nothing: it raises if the database is down
                message += ": its database is full, or read-only, or lets us write no row of the cache's table"
            raise BackendUnavailable(message, name=name, down=not table)


class KeyDeadlines:
    """Until when the entries of tokens acquired here certainly exist, by the local clock."""

    def __init__(self) -> None:
        self.until: dict[str, tuple[float, float]] = {}
        self._lock = threading.Lock()

    def start(self, token: str, sent: float, ttl: int) -> None:
        """Record that the entry of ``token`` exists for ``ttl`` milliseconds after ``sent``."""
        with self._lock:
            self.until[token] = (sent + ttl / 1000, ttl / 1000)
            if len(self.until) > REMEMBERED:
                now = monotonic()
                live = [(token, lease) for token, lease in self.until.items() if lease[0] > now]
                self.until = dict(live[-REMEMBERED * 3 // 4 :])

    def certain(self, token: str, margin: float = 0.0) -> bool | None:
        """Return whether the entry of ``token`` certainly still exists; ``None`` for a token not acquired here."""
        lease = self.until.get(token)
        return None if lease is None else monotonic() < lease[0] - min(1.0, lease[1] * margin)

    def end(self, token: str) -> None:
        """Forget ``token``."""
        with self._lock:
            self.until.pop(token, None)


def _value(request: AcquireRequest, now: int) -> dict[str, Any]:
    ms = now // 1000
    times = {"at": ms, "fence": now, "until": ms + request.hold_ms, "ends": ms + request.ttl_ms, "ttl": request.ttl_ms}
    return {"token": request.token, "holder": json_object(request.holder), **times}


def _decoded(text: object) -> dict[str, Any] | None:
    """Return a decoded value; an empty dict for a value that another application has stored."""
    return None if text is None else json_object(text)


def _cannot_list() -> TaskLockError:
    return TaskLockError(
        "a plain cache cannot list its keys; the Redis and the database backend list their locks:"
        " point TASKLOCK['LOCATION'] at Redis, or set TASKLOCK['BACKEND'] to theirs"
    )


def _holds(text: object, token: str) -> bool:
    found = _decoded(text)
    return found is not None and found.get("token") == token


def _record(name: str, value: dict[str, Any]) -> Record:
    now = time.time_ns() // 1_000_000
    try:
        at, until, ends, ttl, fence = (int(value[key]) for key in ("at", "until", "ends", "ttl", "fence"))
    except (KeyError, TypeError, ValueError, OverflowError):
        return Record(name, "", Holder(), at=now, until=now, now=now, fence=0, ttl=None)
    left = ends - now if ends > now else ttl  # past: renewed since, which is not recorded; at most a lease is left
    return Record(name, str(value.get("token", "")), holder_of(value.get("holder")), at, until, now, fence, left)
