"""Why a connection that was established came to nothing: what its server says to another one, which asks otherwise."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from typing import Any

import redis
from redis.exceptions import RedisError

from django_tasklock.backends.contract.refusals import FULL
from django_tasklock.backends.redis.errors import NotConnected

LISTENING = 0.1
"""Seconds to wait for what a server says: before the client has sent anything, or to a ``PING``."""
GREETING = 0.4
"""Seconds that a TLS handshake may take."""
RESP = (b"+", b"-")
"""With which a Redis replies to a ``PING``, whomever it lets in."""
TLS = (b"\x15", b"\x16")
"""With which a message of TLS begins: an alert, or a handshake."""

Address = tuple[str, int] | str
"""Host and port, or the path of a socket."""


def explain(connection: Any, error: RedisError) -> RedisError | None:
    """Return the reason for ``error``, with which ``connection`` failed before its first reply; ``None``: it is one.

    A server that accepts no more clients says so and closes; if the client has sent anything by then, the message is
    lost with the connection. A port that speaks TLS, or does not, closes or waits if it is asked otherwise.
    """
    if FULL in str(error):
        return redis.ConnectionError(FULL)
    encrypted = isinstance(connection, redis.SSLConnection)
    if not (_was_lost(error) or (encrypted and _was_greeted(error))):
        return None
    address: Address = getattr(connection, "path", "") or (connection.host, connection.port)
    if encrypted:
        if speaks_plainly(address):
            return NotConnected("its port does not speak TLS: write redis:// in place of rediss://")
        return _alert(connection) if _was_lost(error) else None
    if FULL.encode() in (_said(address, _listen) or b""):
        return redis.ConnectionError(FULL)
    said = _said(address, _ping)
    if said is None or said.startswith(RESP):
        return None
    if said and not said.startswith(TLS):
        return NotConnected(f"what answers is no Redis: {said[:40]!r}")
    if _said(address, _greet):
        return NotConnected("its port speaks TLS: write rediss:// in place of redis://")
    return None


def speaks_plainly(address: Address) -> bool:
    """Tell whether a Redis, or a Sentinel, answers there without TLS."""
    return (_said(address, _ping) or b"").startswith(RESP)


def _was_lost(error: RedisError) -> bool:
    """Tell whether a connection was established, and lost before the handshake was complete."""
    return type(error) is redis.ConnectionError and " connecting to " not in str(error)


def _was_greeted(error: RedisError) -> bool:
    """Tell whether a TLS handshake was begun, and not answered, or answered by closing the connection."""
    reason = error.__cause__ or error.__context__
    if isinstance(reason, ssl.SSLEOFError | ConnectionResetError):
        return True
    return isinstance(reason, TimeoutError) and "handshake" in str(reason)


def _alert(connection: Any) -> NotConnected | None:
    """Return why a server closes a connection with TLS: it asks for a certificate of the client's, for example.

    It says so only after the handshake; if the client has sent anything by then, that may be lost.
    """
    try:
        with connection._connect() as probe:
            probe.settimeout(LISTENING)
            probe.recv(1)
    except ssl.SSLError as error:
        return NotConnected(error) if "ALERT" in (error.reason or "") else None
    except (RedisError, OSError):
        pass
    return None


def _said(address: Address, ask: Callable[[socket.socket], bytes]) -> bytes | None:
    """Return what a server answers on a new connection: nothing if it closes that, ``None`` if it is silent."""
    try:
        if isinstance(address, tuple):
            probe = socket.create_connection(address, LISTENING)
        else:
            probe = socket.socket(socket.AF_UNIX)
            probe.settimeout(LISTENING)
        with probe:
            if isinstance(address, str):
                probe.connect(address)
            return ask(probe)
    except ConnectionResetError:
        return b""
    except OSError:
        return None


def _listen(probe: socket.socket) -> bytes:
    return probe.recv(256)


def _ping(probe: socket.socket) -> bytes:
    probe.sendall(b"*1\r\n$4\r\nPING\r\n")
    return probe.recv(256)


def _greet(probe: socket.socket) -> bytes:
    probe.settimeout(GREETING)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with context.wrap_socket(probe) as greeted:
            return str(greeted.version()).encode()
    except ssl.SSLError as error:  # an alert: without a certificate of ours it goes no further
        reason = error.reason or ""
        return reason.encode() if "ALERT" in reason else b""
