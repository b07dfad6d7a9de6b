"""Classification of errors of redis-py and of sockets: whether to retry, and what to raise to the caller."""

from __future__ import annotations

from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    ClusterDownError,
    InvalidResponse,
    ReadOnlyError,
    RedisError,
    ResponseError,
)

from django_tasklock.backends.contract.refusals import FULL, NOBODY, chain, is_local_fault, is_mistake
from django_tasklock.exceptions import BackendUnavailable

NO_PASSWORD = ("NOAUTH", "unauthenticated")
"""What the server's replies contain to a client that gave no password. The second is an error of the protocol: a
request of more than ten arguments is not read."""


class NotConnected(RedisError):
    """A connection could not be made, and neither the network nor the server is the reason.

    For example a credential provider, an option, a certificate or a name. Another process may well be connected.
    """

    def __init__(self, error: Exception | str) -> None:
        super().__init__(error if isinstance(error, str) else f"{type(error).__name__}: {error}")


def concerns_us_alone(error: Exception, handled: BaseException | None) -> bool:
    """Tell whether ``error``, raised while connecting, is a mistake of this client's, and no outage.

    ``handled``: what the caller was handling, which is no reason for it.
    """
    if type(error) is RedisError:  # an option that redis-py refuses
        return True
    for one in chain(error):
        if one is handled:
            break
        if isinstance(one, OSError):
            return is_mistake(one)
    return False


def unavailable(error: BaseException, doubt: bool = False) -> BackendUnavailable:
    """Return the exception for the caller, with the cause and a hint. ``doubt``: the request may have been executed."""
    down = serves_nobody(error)
    if "WRONGTYPE" in str(error):
        hint = "a key of this lock is something else's: delete it, or choose another TASKLOCK['KEY_PREFIX']"
    elif isinstance(error, AuthenticationError) or any(words in str(error) for words in NO_PASSWORD):
        hint = "the password in TASKLOCK['LOCATION'] is missing or wrong"
    elif isinstance(error, NotConnected):
        hint = "see TASKLOCK['LOCATION'], and the options that its cache alias gives to connections"
    elif is_local_fault(error):
        hint = "this process or machine has no room for another connection; Redis itself may well be up"
    else:
        hint = "see TASKLOCK['LOCATION']"
    unasked = down or isinstance(error, NotConnected) or is_local_fault(error)
    what = "Redis could not be asked" if unasked else "Redis refused"
    return BackendUnavailable(f"{what} ({type(error).__name__}: {error}); {hint}", doubt=doubt, down=down)


def serves_nobody(error: BaseException) -> bool:
    """Tell whether the server serves no client, as far as is known. False: it refused this request, or this client."""
    if isinstance(error, BusyLoadingError | ClusterDownError) or str(error).startswith(NOBODY):
        return True  # MASTERDOWN is recognized by its text
    refusals = ResponseError | InvalidResponse | AuthenticationError | AuthorizationError | NotConnected
    if isinstance(error, refusals) or FULL in str(error):
        return False
    return not is_local_fault(error)


def is_final(error: Exception) -> bool:
    """Tell whether a retry cannot help, because the server processed the request and refused it."""
    # A replica refuses too, but a new connection may lead to the primary. Redis 6 wraps a script's error in its own.
    return isinstance(error, ResponseError) and not isinstance(error, ReadOnlyError) and "READONLY" not in str(error)


def was_answered(error: Exception) -> bool:
    """Tell whether the server replied with an error: then it has executed nothing."""
    # A connection through Sentinel raises ConnectionError in place of ReadOnlyError.
    return isinstance(error, ResponseError | BusyLoadingError) or isinstance(error.__context__, ReadOnlyError)
