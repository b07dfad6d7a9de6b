"""How locks lie in Redis, and how replies become records. Pure functions.

With the prefix ``task_lock:`` the lock ``video:42`` is the plain string key
``task_lock:video:42``, so ``GET``, ``TTL`` and ``DEL`` of redis-cli work on it. Beside
the locks: ``task_lock#index`` (a sorted set of keys, scored by expiry),
``task_lock#fence`` (a counter), ``task_lock#queue:video:42`` (who waits, by arrival),
``task_lock#seen:video:42`` (when who waits last looked),
``task_lock#flag:video:42`` (something waits elsewhere: a parked message),
``task_lock#waits:video:42`` (what its holder waits for itself, where no queue says so),
``task_lock#ticket`` (the last ticket drawn), ``task_lock#line:video:42`` (who drew one for it and is not over) and
``task_lock#newest:video:42`` (the last ticket that was shown for it). What is counted: ``lua/_counts.lua``.
A prefix with a hash tag, ``{task_lock}:``, keeps them all in one cluster slot.
Earlier versions also write ``task_lock#since`` and ``task_lock#until``, the index again in other orders: they are not
read any more, and end a day after a process of this version first meets them.
"""

from __future__ import annotations

import json
import os
import re
from functools import lru_cache
from typing import Any

from django_tasklock.backends.codec import holder_of
from django_tasklock.backends.redis.script import bulk
from django_tasklock.types import LATEST, AcquireRequest, Busy, Holder, Record

CLAIM = 3000
"""Milliseconds a lock passed on to a waiter is its own before its first renewal: the most that
a process which is frozen, but still connected, can hold the others back, however many of its
threads wait. A waiter that has not looked for as long is passed over: ``FROZEN`` in the scripts."""


KEPT = 86_400_000
"""Milliseconds a line, or a note that something waits for a lock elsewhere, is kept after its last change."""
PAST = 10
"""Last holds of a name that are kept where the value of a lock does not say how many."""
SHOWN = 7_200_000
"""Milliseconds the newest ticket of a name is remembered: twice Redis' visibility timeout, after which a broker brings
an older message once more. Each name that is coalesced has such a key."""


class Layout:
    """Keys and packed arguments for one prefix."""

    def __init__(self, prefix: str, past: int = PAST) -> None:
        self.prefix = prefix
        self.past = past
        root = prefix.removesuffix(":") + "#"
        self.queue = f"{root}queue:"
        self.seen = f"{root}seen:"
        self.channel = f"{root}wake:"
        self.flags = f"{root}flag:"
        self.lines = f"{root}line:"
        self.waits = f"{root}waits:"
        self.counts = f"{root}counts:"
        self.shown = f"{root}newest:"
        self.index = bulk(f"{root}index")
        self.fence = bulk(f"{root}fence")
        self.ticket = bulk(f"{root}ticket")
        before = self.queue.encode(), self.seen.encode(), f"{root}open:".encode()
        parts = (prefix.encode(), self.index, self.fence, *before)
        name = b"$%%d\r\n%b%%b\r\n"
        lock, index, fence, queue, seen, copy = (part.replace(b"%", b"%%") for part in parts)
        self.granting = (name + b"%b%b" + name + name) % (lock, index, fence, queue, seen)
        """Keys of every script that grants: lock, index, fence counter, queue, seen. For ``%``, with the ``sizes`` of
        what is before the name, plus that of the name, each before it."""
        self.copy = name % copy
        """The key of the copy of a value that is counted; for ``%``, too."""
        self.releasing = (name + b"%b" + name) % (lock, index, queue)
        """Lock, index, queue; for ``%``, too."""
        self.sizes = len(parts[0]), len(parts[3]), len(parts[4]), len(parts[5])

    def lock(self, name: str) -> bytes:
        """Return the key of a lock."""
        return bulk(self.prefix + name)

    def flag(self, name: str) -> bytes:
        """Return the key of the note that something waits for a lock elsewhere."""
        return bulk(self.flags + name)

    def waiting(self, name: str) -> bytes:
        """Return the keys of who waits for a lock."""
        return bulk(self.queue + name) + bulk(self.seen + name)

    def line(self, name: str) -> bytes:
        """Return the key of the line of what was published for a lock and has not arrived."""
        return bulk(self.lines + name)

    def newest(self, name: str) -> bytes:
        """Return the key of the greatest ticket that was shown for a lock."""
        return bulk(self.shown + name)

    def keys(self, name: str) -> bytes:
        """Return the keys of every script that grants this lock."""
        bare = name.encode()
        size = len(bare)
        lock, queue, seen, _ = self.sizes
        return self.granting % (size + lock, bare, size + queue, bare, size + seen, bare)

    def acquiring(self, request: AcquireRequest) -> bytes:
        """Return keys and arguments of ``acquire.lua`` for somebody who does not wait."""
        return self.keys(request.name) + self.arguments(request)

    def arguments(self, request: AcquireRequest) -> bytes:
        """Return the arguments of ``acquire.lua``: token, TTL, hold, holder and what is done when busy."""
        token = request.token.encode()
        kind, on_busy = request.kind, request.on_busy
        rest = packed_arguments(request.ttl_ms, request.hold_ms, request.holder, kind, on_busy, self.past)
        return b"$%d\r\n%b\r\n%b" % (len(token), token, rest)

    def following(self, request: AcquireRequest) -> bytes:
        """Return keys and arguments of ``acquire.lua`` for a request that supersedes an earlier lease."""
        return self.acquiring(request) + bulk("") + bulk(request.supersedes)

    def joining(self, request: AcquireRequest, channel: str, rank: int | None, listens: bool) -> bytes:
        """Return keys and arguments of ``acquire.lua`` for somebody who waits, or looks from its place in the queue."""
        return self.acquiring(request) + self.entry(request, channel) + bulk("") + place(rank, listens)

    def new_channel(self) -> str:
        """Return where one waiter listens."""
        return self.channel + os.urandom(12).hex()

    def entry(self, request: AcquireRequest, channel: str) -> bytes:
        """Return what ``pass_on`` must know of a waiter."""
        holder = counted(request.holder, request.kind, self.past)
        return bulk(f"{request.token} {channel} {request.claim(CLAIM)} {request.hold_ms} {holder}")

    def record(self, key: bytes, reply: list[Any]) -> Record:
        """Return a record from ``{ms left, value, now, waiting}``; the last may be missing."""
        left, value, now, *more = reply
        return record(key.decode().removeprefix(self.prefix), value, now, left, more[0] if more else 0)

    def busy(self, name: str, reply: list[Any]) -> Busy:
        """Return what a refused ``acquire.lua`` said."""
        found = self.record(name.encode(), reply[:3])
        return Busy(found, found.ttl)


def place(rank: int | None, listens: bool) -> bytes:
    """Return what the scripts ask of a waiter: the rank that it had, and whether somebody listens on its channel."""
    return bulk("" if rank is None else rank) + bulk("1" if listens else "")


@lru_cache(maxsize=256)  # few in number, alike from call to call
def packed_arguments(ttl: int, hold: int, holder: str, kind: str | None, on_busy: str, past: int) -> bytes:
    """Return what every acquisition by this process, or by a task of it, says alike."""
    given = (str(ttl).encode(), str(hold).encode(), counted(holder, kind, past).encode(), on_busy.encode())
    return b"".join([b"$%d\r\n%b\r\n" % (len(one), one) for one in given])


def counted(holder: str, kind: str | None, most: int = PAST) -> str:
    """Return a holder that begins with its kind, if it is counted: it is to be found there.

    ``most``: how many of the last holds of its name are to be kept.
    """
    if kind is None:
        return holder
    past = "" if most == PAST else f',"past":{most}'
    rest = holder[1:] if holder == "{}" else f",{holder[1:]}"
    return f'{{"kind":"{kind}"{past}{rest}'


def _within(value: Any, most: int) -> int:
    number = int(value)
    if not 0 <= number <= most:
        raise ValueError
    return number


_OURS = re.compile(rb'{"token":"([^"]+)"')  # as the scripts see it, too


def record(name: str, value: bytes, now: int, left: int, waiting: int) -> Record:
    """Return a value as a record; a value that is not ours still is somebody's lock."""
    return lazy_record((value, now, left), name, now, None if left == -1 else left, waiting, 0)


def _read(given: tuple[bytes, int, int]) -> dict[str, Any]:
    value, now, left = given
    ours = _OURS.match(value)
    token = ours[1].decode(errors="replace") if ours else ""
    try:
        if not ours:
            raise ValueError
        data = json.loads(value)
        return dict(
            token=token,
            holder=holder_of(data["holder"]),
            at=_within(data["at"], LATEST),
            until=_within(data["until"], LATEST),
            fence=_within(data["fence"], 2**63),
            asked=_within(data.get("asked", 0), LATEST),
        )
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        holder = Holder(unreadable=bool(token))
        return dict(token=token, holder=holder, at=now, until=now + max(left, 0), fence=0, asked=0)


_KNOWN = "name", "now", "ttl", "waiting", "instances"
lazy_record = Record.maker(_read, *_KNOWN)
"""Make one of value, now and ms left as one, and then each field."""
lazy_records = Record.list_maker(_read, *_KNOWN)
"""Make ten thousand, of a list of the former and one of each field."""
