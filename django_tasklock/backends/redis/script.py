"""Lua scripts and the commands that run them, encoded in advance in the Redis protocol (RESP)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import cache, cached_property
from importlib import resources

USE = re.compile(r"^ *-- use: (.+)\n", re.MULTILINE)
COMMENT = re.compile(r"^ *--(?! use:).*\n", re.MULTILINE)


def bulk(value: str | bytes | int) -> bytes:
    """Return one argument of a command, encoded as a RESP bulk string."""
    data = value if isinstance(value, bytes) else str(value).encode()
    return b"$%d\r\n%b\r\n" % (len(data), data)


class Script:
    """A script with the encoded beginnings of the commands that run it.

    ``count`` is the number of keys and arguments together, ``keys`` that of the keys alone.
    """

    def __init__(self, body: str, count: int = 0, keys: int = 0) -> None:
        self.body = body
        self.count = count
        self.keys = keys
        self.sha = hashlib.sha1(body.encode(), usedforsecurity=False).hexdigest()

    @cached_property
    def by_digest(self) -> bytes:
        """The ``EVALSHA`` command up to the keys and arguments."""
        return b"*%d\r\n$7\r\nEVALSHA\r\n%b%b" % (self.count + 3, bulk(self.sha), bulk(self.keys))

    @cached_property
    def by_body(self) -> bytes:
        """The ``EVAL`` command up to the keys and arguments, for a server that does not have the script cached."""
        return b"*%d\r\n$4\r\nEVAL\r\n%b%b" % (self.count + 3, bulk(self.body), bulk(self.keys))

    def sized(self, count: int, keys: int) -> Script:
        """Return the same script with another number of keys and arguments."""
        return self if (count, keys) == (self.count, self.keys) else Script(self.body, count, keys)


def packed(script: Script, keys: Sequence[str], args: Sequence[str | bytes | int]) -> tuple[Script, bytes]:
    """Return ``script`` for this many keys and arguments, and these encoded."""
    return script.sized(len(keys) + len(args), len(keys)), b"".join(map(bulk, (*keys, *args)))


def load(verb: str, keys: int = 0, arguments: int = 0) -> Script:
    """Return the script ``lua/<verb>.lua``."""
    return Script(_body(verb), keys + arguments, keys)


@cache
def _body(name: str) -> str:
    """Return a file of ``lua/`` without comments, each line ``-- use: <parts>`` replaced by the shared files so named.

    Redis creates the functions of a script anew in each call, up to the point where it returns: so parts that are not
    always needed are included as late as possible.
    """
    text = (resources.files("django_tasklock.backends") / "lua" / f"{name}.lua").read_text("utf-8")
    return USE.sub(lambda found: "".join(_body(f"_{part}") for part in found[1].split()), COMMENT.sub("", text))
