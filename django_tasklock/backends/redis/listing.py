"""The arguments of ``page.lua`` and the decoding of its reply. Pure functions."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import repeat
from typing import Any

from django_tasklock.backends.contract.queries import Page, Query
from django_tasklock.backends.redis.keys import Layout, lazy_records, record
from django_tasklock.backends.redis.script import Script, bulk, load
from django_tasklock.conf import expiring

PAGE = load("page", 1, 12)
MOST = 5000  # locks examined by one script: Redis serves no other client meanwhile
ORDERED = 5000
"""How many locks at a time are sorted by another column than expiry, the order of the index; at most 8191."""


LONG_LIST = 1000
"""From this length on, a plain list of locks takes the time left from the index."""


def page_of(layout: Layout, query: Query, most: int = 0, *, as_indexed: bool = False) -> tuple[Script, bytes]:
    """Return the script with its key and arguments. ``most``: how many locks to examine; 0: the default.

    ``as_indexed``: live locks in order of expiry, with the time left according to the index.
    """
    needles = []
    if query.task:
        needles.append(f'"task":{json.dumps(query.task)}')
    filtered = query.text or query.waiting or needles
    arguments: list[str | int] = [
        query.which,
        "index" if as_indexed else query.order if query.which == "live" else "expiry",
        "down" if query.descending else "",
        query.offset,
        query.limit,
        layout.prefix,
        layout.queue,
        expiring(),
        most or (MOST if filtered else query.limit),
        LONG_LIST if as_indexed else ORDERED,
        lower(query.text),
        "waiting" if query.waiting else "",
        *needles,
    ]
    script = PAGE.sized(1 + len(arguments), 1)
    return script, layout.index + b"".join(map(bulk, arguments))


def page_in(layout: Layout, query: Query, reply: list[Any]) -> Page:
    """Return the page in a reply of the script."""
    now, total, further, lefts, waits, keys, values = reply
    further = None if further < 0 else further
    if keys and not lefts:  # a long list, in the format of "index"
        found = []
        for flat, part in zip(keys, values, strict=True):
            texts = map(str, flat[::2], repeat("utf-8"), repeat("backslashreplace"))
            names = map(str.removeprefix, texts, repeat(layout.prefix))
            ttls = [score - now for score in map(int, flat[1::2])]
            given = list(zip(part, repeat(now), ttls))
            found += lazy_records(given, names, repeat(now), ttls, repeat(0), repeat(0))
        return Page(found, total, further)
    found = []
    for left, waiting, key, value in zip(map(int, lefts.split()), map(int, waits.split()), keys, values, strict=True):
        shown = record(_name(layout, key), value or b"", now, left, waiting)
        if query.which == "orphaned":
            shown = replace(shown, ttl=left)  # -1 is "lapsed 1 ms ago" here, not "no expiry"
        found.append(shown)
    return Page(found, total, further)


def _name(layout: Layout, key: bytes) -> str:
    return key.decode(errors="backslashreplace").removeprefix(layout.prefix)


def lower(text: str) -> str:
    """Lowercase ASCII letters only, as Lua does."""
    return "".join(char.lower() if char.isascii() else char for char in text)
