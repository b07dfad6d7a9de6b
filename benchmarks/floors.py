"""What the same two steps cost with nothing around them. No promise beyond exclusion is kept here."""

from __future__ import annotations

import os
import socket
import time
from typing import Any
from urllib.parse import urlsplit

import redis

from benchmarks.adapters import HOLD, Adapter, CallerRetries, Refused

__all__ = ["FLOORS", "BareSocket", "BlpopWake", "RedisPy"]

COMPARE_AND_DELETE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0"

RELEASE_AND_WAKE = """
if redis.call('get', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('del', KEYS[1])
redis.call('del', KEYS[2])
redis.call('lpush', KEYS[2], 1)
redis.call('pexpire', KEYS[2], ARGV[2])
return 1
"""


class BareSocket(CallerRetries):
    """SET NX PX and EVALSHA, packed by hand, on one socket: the least a Python client can spend."""

    label = "floor: bare socket"

    def __init__(self, url: str, key: str) -> None:
        address = urlsplit(url)
        self.socket = socket.create_connection((address.hostname or "127.0.0.1", address.port or 6379))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sha = self._ask(_pack("SCRIPT", "LOAD", COMPARE_AND_DELETE)).split(b"\r\n")[1].decode()
        name, token = f"bare:{key}", "0" * 32
        set_command = _pack("SET", name, token, "NX", "PX", str(HOLD * 1000))
        del_command = _pack("EVALSHA", sha, "1", name, token)
        self.set_parts = set_command.split(token.encode())
        self.del_parts = del_command.split(token.encode())
        self.token = b""

    def try_acquire(self) -> bool:
        self.token = os.urandom(16).hex().encode()
        return self._ask(self.token.join(self.set_parts)) == b"+OK\r\n"

    def release(self) -> None:
        if self._ask(self.token.join(self.del_parts)) != b":1\r\n":
            raise RuntimeError("the lock was not ours")

    def _ask(self, packed: bytes) -> bytes:
        self.socket.sendall(packed)
        return self.socket.recv(4096)


def _pack(*words: str) -> bytes:
    body = "".join(f"${len(word)}\r\n{word}\r\n" for word in words)
    return f"*{len(words)}\r\n{body}".encode()


class RedisPy(CallerRetries):
    """SET NX PX and EVALSHA through redis-py: what its command path costs."""

    label = "floor: redis-py raw"

    def __init__(self, url: str, key: str) -> None:
        # No socket timeout: redis-py 8 would otherwise break a BLPOP that waits longer than 5 s.
        self.client: Any = redis.Redis.from_url(url, socket_timeout=None)
        self.name = f"raw:{key}"
        self.sha = self.client.script_load(COMPARE_AND_DELETE)
        self.token = ""

    def try_acquire(self) -> bool:
        self.token = os.urandom(16).hex()
        return bool(self.client.set(self.name, self.token, nx=True, px=HOLD * 1000))

    def release(self) -> None:
        if not self.client.evalsha(self.sha, 1, self.name, self.token):
            raise RuntimeError("the lock was not ours")


class BlpopWake(RedisPy):
    """The release pushes a wake-up, the woken one tries again: the usual way not to poll."""

    label = "floor: redis-py raw + BLPOP wake"
    waits = "woken (BLPOP), tries again"

    def __init__(self, url: str, key: str) -> None:
        super().__init__(url, f"wake:{key}")
        self.wake = f"{self.name}:signal"
        self.sha = self.client.script_load(RELEASE_AND_WAKE)

    def acquire(self) -> None:
        deadline = time.monotonic() + 10
        while not self.try_acquire():
            if time.monotonic() > deadline:
                raise Refused(self.label)
            self.client.blpop([self.wake], timeout=1)

    def release(self) -> None:
        if not self.client.evalsha(self.sha, 2, self.name, self.wake, self.token, 1000):
            raise RuntimeError("the lock was not ours")


FLOORS: list[type[Adapter]] = [BareSocket, RedisPy, BlpopWake]
