"""Error texts and codes that tell a store which is down from one that refuses only this client."""

from __future__ import annotations

import errno
import socket
import ssl
from collections.abc import Iterator

FULL = "max number of clients reached"
"""Redis's error when it accepts no more clients; client libraries have no exception class for it."""
NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})
"""Error numbers with which connecting fails because of this process or machine, whatever the server's state."""
OUTAGES = frozenset(
    {
        errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED, errno.EPIPE, errno.ESHUTDOWN, errno.ENOTCONN,
        errno.ETIMEDOUT, errno.EAGAIN, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH,
        errno.ENETRESET,
    }
)  # fmt: skip
"""Error numbers with which connecting fails because nobody answers, or the network is down."""
NOBODY = ("BUSY ", "MASTERDOWN ", "CLUSTERDOWN ")
"""Prefixes of the errors of a Redis that serves no client; (older) client libraries lack classes for some of them."""

# Of Python's own, because any other exception may come from a signal handler: a soft time limit, for example.
MISTAKES = (ArithmeticError, AttributeError, ImportError, LookupError, RuntimeError, TypeError, ValueError)
"""Errors that a wrong option or a credential provider causes as a connection is made."""


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the error and its causes and contexts, each once: django-redis makes cycles of them."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def is_mistake(error: OSError) -> bool:
    """Tell whether connecting failed for a reason that other clients of the server need not have: a certificate, a name
    that does not resolve, a path that leads nowhere or is forbidden.
    """
    if isinstance(error, ssl.SSLError):
        return not isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError)  # it was closed
    if isinstance(error, socket.gaierror):
        return True
    return error.errno is not None and error.errno not in OUTAGES | NO_ROOM


def is_local_fault(error: BaseException | None) -> bool:
    """Tell whether connecting failed because of this process or machine: too many open files, no free port."""
    return any(isinstance(one, OSError) and one.errno in NO_ROOM for one in chain(error))
