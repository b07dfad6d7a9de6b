"""A proxy before Redis that understands enough of its protocol to fail at an exact request.

Faults are decided per request and per reply, not by time: "execute the next release, throw
its reply away and close the connection" is one call. Whatever is not matched passes.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import urlsplit, urlunsplit

from tests.support.redis_server import free_port

__all__ = ["Proxy", "Request", "anything", "command", "scripts"]

Request = tuple[bytes, ...]
"""The words of one command."""
Matcher = Callable[[Request], bool]


def anything(request: Request) -> bool:
    """Every script: what verbs send, but not what redis-py sends to set a connection up."""
    return request[0].upper() in (b"EVAL", b"EVALSHA")


def command(name: bytes) -> Matcher:
    """A command by its name."""
    return lambda request: request[0].upper() == name


def scripts(*verbs: str) -> Matcher:
    """The scripts of these verbs, sent by digest or by body."""
    from django_tasklock.backends.redis.script import load

    made = [load(verb) for verb in verbs]
    found = {data for script in made for data in (script.sha.encode(), script.body.encode())}
    return lambda request: anything(request) and request[1] in found


@dataclass
class Fault:
    """What happens to the next ``times`` requests that match. ``times=-1``: to all."""

    match: Matcher
    times: int = 1
    answer: bytes = b""
    """Said in place of the server, which is not asked."""
    unsent: bool = False
    """Close the connection in place of asking the server."""
    lose: bool = False
    """Let the server execute it, then close the connection without the reply."""
    swallow: bool = False
    """Let the server execute it, then say nothing."""
    delay: float = 0.0
    """Seconds by which the reply comes late."""
    first: Callable[[], object] | None = None
    """Called before anything else happens; the request waits for its end."""
    then: Callable[[], object] | None = None
    """Called between the server's execution and the fate of its reply."""
    met: list[Request] = field(default_factory=list)
    """The requests that it happened to."""


class Proxy:
    """Listens on a port of its own, for as long as the ``with`` block runs."""

    def __init__(self, url: str, *, tls: ssl.SSLContext | None = None) -> None:
        parts = urlsplit(url)
        self.port = free_port()
        self.target = (parts.hostname or "127.0.0.1", parts.port or 6379)
        self.tls = tls
        user, at, _ = parts.netloc.rpartition("@")
        scheme = "rediss" if tls else "redis"
        self.url = urlunsplit((scheme, f"{user}{at}127.0.0.1:{self.port}", parts.path, parts.query, ""))
        self.requests: list[Request] = []
        self.answered = 0
        """How many requests have had their reply."""
        self.accepted = 0
        """How many connections were made to it so far."""
        self._faults: list[Fault] = []
        self._lock = threading.RLock()
        self._listener: socket.socket | None = None
        self._pairs: set[_Pair] = set()
        self._flowing = threading.Event()
        self._flowing.set()
        self.mute = False
        """Whether pushes, which nobody asked for, are thrown away."""

    def fault(self, match: Matcher, **what: object) -> Fault:
        """Plan one; see ``Fault``. Those planned first are used up first."""
        planned = Fault(match, **what)
        with self._lock:
            self._faults.append(planned)
        return planned

    def lose_reply(self, match: Matcher = anything, times: int = 1, then: Callable[[], object] | None = None) -> Fault:
        """Let the server execute the next ``times`` of these, and lose what it says."""
        return self.fault(match, times=times, lose=True, then=then)

    def say(self, answer: str, match: Matcher = anything) -> Fault:
        """Answer all of these with this error, in place of the server."""
        return self.fault(match, times=-1, answer=f"-{answer}\r\n".encode())

    def heal(self) -> None:
        """No more faults: what was planned is forgotten, what was refused or held up is let through."""
        with self._lock:
            self._faults.clear()
        self.mute = False
        self._flowing.set()
        self.listen()

    def hang(self) -> None:
        """Accept everything, forward nothing, say nothing: a server that was stopped."""
        self._flowing.clear()

    def refuse(self) -> None:
        """Close every connection and refuse new ones: a server that is gone."""
        with self._lock:
            listener, self._listener = self._listener, None
        if listener is not None:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        self.cut()

    def cut(self) -> None:
        """Close every connection; new ones are welcome."""
        with self._lock:
            pairs = list(self._pairs)
        for pair in pairs:
            pair.close()

    @contextlib.contextmanager
    def recorded(self) -> Iterator[list[Request]]:
        """What was sent inside the block, connection set-up left out."""
        before = len(self.requests)
        sent: list[Request] = []
        yield sent
        sent += [request for request in self.requests[before:] if request[0].upper() not in _SET_UP]

    def listen(self) -> None:
        """Accept connections; nothing if it does already."""
        with self._lock:
            if self._listener is not None:
                return
            self._listener = socket.create_server(("127.0.0.1", self.port))
            threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._welcome, args=(client,), daemon=True).start()

    def _welcome(self, client: socket.socket) -> None:
        try:
            if self.tls is not None:
                client = self.tls.wrap_socket(client, server_side=True)
            server = socket.create_connection(self.target)
        except OSError:
            client.close()
            return
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        pair = _Pair(self, client, server)
        with self._lock:
            self.accepted += 1
            self._pairs.add(pair)
        threading.Thread(target=pair.pump_replies, daemon=True).start()
        pair.pump_requests()

    def claim(self, request: Request) -> Fault | None:
        """Note a request; the fault that it meets, used up by that."""
        with self._lock:
            self.requests.append(request)
            for fault in self._faults:
                if fault.times and fault.match(request):
                    return fault
        return None

    def use_up(self, fault: Fault, request: Request) -> None:
        """It happened."""
        with self._lock:
            fault.times -= 1
            fault.met.append(request)

    @property
    def quiet(self) -> bool:
        """Whether each request so far has had its reply."""
        with self._lock:
            return len(self.requests) == self.answered

    @property
    def open(self) -> int:
        """How many connections there are to it now."""
        with self._lock:
            return len(self._pairs)

    def forget(self, pair: _Pair) -> None:
        """A connection ended."""
        with self._lock:
            self._pairs.discard(pair)

    def __enter__(self) -> Self:
        self.listen()
        return self

    def __exit__(self, *details: object) -> None:
        self.refuse()
        self._flowing.set()


class _Pair:
    """One connection and its twin to the server. Two threads: requests go one way, replies the other."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self.proxy = proxy
        self.client = client
        self.server = server
        self.asked: queue.SimpleQueue[tuple[Request, Fault | None]] = queue.SimpleQueue()

    def pump_requests(self) -> None:
        """From the client to the server."""
        try:
            for request, raw in _requests(self.client):
                self.proxy._flowing.wait()
                fault = self.proxy.claim(request)
                if fault is not None and fault.first is not None:
                    fault.first()
                if fault is not None and (fault.answer or fault.unsent):
                    self.proxy.use_up(fault, request)
                    if fault.unsent:
                        return
                    self.client.sendall(fault.answer)
                    continue
                self.asked.put((request, fault))
                self.server.sendall(raw)
        except (OSError, EOFError):
            pass
        finally:
            self.close()

    def pump_replies(self) -> None:
        """From the server to the client. A push is nobody's reply and passes."""
        try:
            for raw in _replies(self.server):
                try:
                    request, fault = self.asked.get_nowait()
                except queue.Empty:
                    if not self.proxy.mute:
                        self.client.sendall(raw)
                    continue
                if fault is None or not fault.times or raw.startswith(b"-NOSCRIPT"):  # that was not executed
                    self.client.sendall(raw)
                    with self.proxy._lock:
                        self.proxy.answered += 1
                    continue
                self.proxy.use_up(fault, request)
                if fault.then is not None:
                    fault.then()
                if fault.delay:
                    time.sleep(fault.delay)
                if fault.lose:
                    return
                if not fault.swallow:
                    self.client.sendall(raw)
        except (OSError, EOFError):
            pass
        finally:
            self.close()

    def close(self) -> None:
        """Both ends."""
        for end in (self.client, self.server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self.proxy.forget(self)


_SET_UP = {b"CLIENT", b"SELECT", b"AUTH", b"HELLO", b"PING"}


class _Stream:
    """Bytes that are handed on unchanged after they were understood."""

    def __init__(self, source: socket.socket) -> None:
        self.file = source.makefile("rb")
        self.raw = b""

    def line(self) -> bytes:
        line = self.file.readline()
        if not line.endswith(b"\r\n"):
            raise EOFError
        self.raw += line
        return line[:-2]

    def bulk(self, size: int) -> bytes:
        data = self.file.read(size + 2)
        if len(data) < size + 2:
            raise EOFError
        self.raw += data
        return data[:-2]

    def taken(self) -> bytes:
        raw, self.raw = self.raw, b""
        return raw


def _requests(source: socket.socket) -> Iterator[tuple[Request, bytes]]:
    stream = _Stream(source)
    while True:
        count = int(stream.line()[1:])
        words = tuple(stream.bulk(int(stream.line()[1:])) for _ in range(count))
        yield words, stream.taken()


def _replies(source: socket.socket) -> Iterator[bytes]:
    stream = _Stream(source)
    while True:
        missing = 1
        while missing:
            missing -= 1
            line = stream.line()
            size = int(line[1:]) if line[:1] in b"$*" else 0
            if line.startswith(b"$") and size >= 0:
                stream.bulk(size)
            elif line.startswith(b"*"):
                missing += max(0, size)
        yield stream.taken()
