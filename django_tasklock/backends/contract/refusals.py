"""Error texts and codes that tell a store which is down from one that refuses only this client."""

from __future__ import annotations

import errno
from collections.abc import Iterator

FULL = "max number of clients reached"
"""Redis's error when it accepts no more clients; client libraries have no exception class for it."""
NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})
"""Error numbers with which connecting fails because of this process or machine, whatever the server's state."""
NOBODY = ("BUSY ", "MASTERDOWN ", "CLUSTERDOWN ")
"""Prefixes of the errors of a Redis that serves no client; (older) client libraries lack classes for some of them."""


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the error and its causes and contexts, each once: django-redis makes cycles of them."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def is_local_fault(error: BaseException | None) -> bool:
    """Tell whether connecting failed because of this process or machine: too many open files, no free port."""
    return any(isinstance(one, OSError) and one.errno in NO_ROOM for one in chain(error))
