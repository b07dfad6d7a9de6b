"""A cable between two servers, of which nothing is understood: bytes go through it, or are held up."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Self

from tests.support.redis_server import free_port

__all__ = ["Cable"]


class Cable:
    """Leads from a port of its own to ``target`` on this machine, for as long as the ``with`` block runs."""

    def __init__(self, target: int) -> None:
        self.port = free_port()
        self.target = target
        self._flowing = threading.Event()
        self._flowing.set()
        self._ends: list[socket.socket] = []
        self._over = False

    def hold(self) -> None:
        """Let nothing through from now on, and leave everything connected."""
        self._flowing.clear()

    def cut(self) -> None:
        """Lose what is held up, and let nobody through any more."""
        self._over = True
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self._flowing.set()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self.target))
            except OSError:  # nobody is there
                near.close()
                continue
            self._ends += [near, far]
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self._flowing.wait()
                if self._over:
                    return
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Self:
        listener = socket.create_server(("127.0.0.1", self.port))
        self._ends.append(listener)
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        return self

    def __exit__(self, *details: object) -> None:
        self.cut()
