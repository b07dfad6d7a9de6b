"""The layout of locks in Redis, and the conversion of replies to records. Pure functions.

With the prefix ``task_lock:`` the lock ``video:42`` is the plain string key
``task_lock:video:42``, so ``GET``, ``TTL`` and ``DEL`` of redis-cli work on it. Beside
the locks there are ``task_lock#index`` (a sorted set of keys, scored by expiry),
``task_lock#fence`` (a counter), ``task_lock#queue:video:42`` (the waiters, by arrival),
``task_lock#waiters:video:42`` (who they are, and when each last asked),
``task_lock#flag:video:42`` (a message is parked for the lock, or a counter),
``task_lock#number`` (the last sequence number), ``task_lock#order:video:42`` (the members that drew one for the lock
and have not left) and ``task_lock#newest:video:42`` (the greatest one recorded for it).
With a hash tag in the prefix, ``{task_lock}:``, all of them are in one cluster slot.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any

from django_tasklock.backends.contract.codec import holder_of
from django_tasklock.types import LATEST, AcquireRequest, Busy, Grant, Holder, Record

HANDOVER_TTL = 3000
"""The TTL of a lock that was handed to a waiter, until its first renewal, in milliseconds: the
longest that a process which is frozen, but still connected, can block other waiters, however many
of its threads wait. A waiter that has not polled for as long is passed over: ``FROZEN`` in the
scripts."""


KEPT = 86_400_000
"""The TTL of an order, a flag or a counter after its last change, in milliseconds."""
SHOWN = 7_200_000
"""The TTL of the newest sequence number of a name, in milliseconds: twice the visibility timeout of Redis as a broker,
after which an older message is delivered again. Each name that is coalesced has such a key."""


class Layout:
    """Keys and arguments for one prefix."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        root = prefix.removesuffix(":") + "#"
        self.root = root
        """The beginning of all keys that are no locks."""
        self.locks = re.sub(r"([*?\[\]\\])", r"\\\1", prefix) + "*"
        """The pattern of the keys of all locks."""
        self.queue = f"{root}queue:"
        self.index = f"{root}index"
        self.number = f"{root}number"
        self.fence = f"{root}fence"
        self._waiters = f"{root}waiters:"
        self._channel = f"{root}wake:"
        self._flags = f"{root}flag:"
        self._orders = f"{root}order:"
        self._newest = f"{root}newest:"

    def lock(self, name: str) -> str:
        """Return the key of a lock."""
        return self.prefix + name

    def flag(self, name: str) -> str:
        """Return the key of a flag or a counter."""
        return self._flags + name

    def waiting(self, name: str) -> list[str]:
        """Return the keys of the waiters for a lock."""
        return [self.queue + name, self._waiters + name]

    def order(self, name: str) -> str:
        """Return the key of the order of a lock: the members that drew a sequence number and have not left."""
        return self._orders + name

    def newest(self, name: str) -> str:
        """Return the key of the greatest sequence number recorded for a lock."""
        return self._newest + name

    def keys(self, name: str) -> list[str]:
        """Return the keys of the scripts that can grant this lock."""
        return [self.prefix + name, self.index, self.fence, self.queue + name, self._waiters + name]

    def arguments(self, request: AcquireRequest) -> tuple[str | int, ...]:
        """Return the arguments of ``acquire.lua``: token, TTL, hold, holder, and the token of the hold to follow."""
        return request.token, request.ttl_ms, request.hold_ms, request.holder, request.supersedes

    def new_channel(self) -> str:
        """Return a new name for the channel of one waiter."""
        return self._channel + os.urandom(12).hex()

    def record(self, key: bytes, reply: list[Any]) -> Record:
        """Return a record from a reply ``{ms left, value, now, waiting}``; the last may be missing."""
        left, value, now, *more = reply
        ttl = None if left == -1 else left
        return record(key.decode().removeprefix(self.prefix), value, now, ttl, more[0] if more else 0)

    def busy(self, name: str, reply: list[Any]) -> Busy:
        """Return the conflict in a reply of ``acquire.lua``."""
        found = self.record(name.encode(), reply[:3])
        return Busy(found, found.ttl, expired=reply[3])


def is_granted(reply: Any) -> bool:
    """Return whether a reply is that to a grant, ``{fence, expired}``; that to a refusal is longer."""
    return len(reply) == 2


def grant_in(reply: Any, ttl: int) -> Grant:
    """Return the grant in a reply to one."""
    return Grant(reply[0], ttl, reply[1])


def joining(request: AcquireRequest, channel: str, rank: int | None) -> tuple[str | int, ...]:
    """Return a waiter's last arguments: its channel, the TTL of a hand-over, and its earlier rank in the queue."""
    return channel, request.handover_ttl(HANDOVER_TTL), "" if rank is None else rank


def _bounded(value: Any, most: int) -> int:
    number = int(value)
    if not 0 <= number <= most:
        raise ValueError
    return number


_TOKEN = re.compile(rb'{"token":"([^"]+)"')  # as in the scripts


def record(name: str, value: bytes, now: int, ttl: int | None, waiting: int) -> Record:
    """Return the record of a lock's value; a foreign value is a lock too, of an unknown holder."""
    ours = _TOKEN.match(value)
    token = ours[1].decode(errors="replace") if ours else ""
    try:
        if not ours:
            raise ValueError
        data = json.loads(value.decode())
        return Record(
            name,
            token,
            holder_of(data["holder"]),
            at=_bounded(data["at"], LATEST),
            until=_bounded(data["until"], LATEST),
            now=now,
            fence=_bounded(data["fence"], 2**63),
            ttl=ttl,
            waiting=waiting,
            asked=_bounded(data.get("asked", 0), LATEST),
        )
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return Record(name, token, Holder(unreadable=bool(token)), now, now + max(ttl or 0, 0), now, 0, ttl, waiting)
