"""What a store that serves others says to us, and what one that serves nobody: whichever client it is told by."""

from __future__ import annotations

import errno
from collections.abc import Iterator

FULL = "max number of clients reached"
"""What a Redis says that takes no more clients; its clients have no error of their own for it."""
NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})
"""Why this process or machine cannot make a connection, whatever the server does."""
NOBODY = ("BUSY ", "MASTERDOWN ", "CLUSTERDOWN ")
"""What a Redis says that answers nobody; for some of it clients, or older ones, have no error of their own."""


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the error and those that led to it, each once: django-redis makes rings of them."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def is_local_fault(error: BaseException | None) -> bool:
    """Tell whether a connection was not made because of this process or machine: too many open files, no port left."""
    return any(isinstance(one, OSError) and one.errno in NO_ROOM for one in chain(error))
