"""Scripts, packed ahead as the protocol wants them."""

from __future__ import annotations

import hashlib
import re
from functools import cache, cached_property
from importlib import resources

USE = re.compile(r"^ *-- use: (.+)\n", re.MULTILINE)


def bulk(value: str | bytes | int) -> bytes:
    """Return one argument of a command, as the protocol wants it."""
    data = value if isinstance(value, bytes) else str(value).encode()
    return b"$%d\r\n%b\r\n" % (len(data), data)


class Script:
    """A script and the beginnings of the commands that run it.

    ``count`` is the number of keys and arguments together, ``keys`` of the keys alone. ``followed``: another command
    stands behind the arguments, and there are two replies.
    """

    def __init__(self, body: str, count: int, keys: int, followed: bool = False) -> None:
        self.body = body
        self.count = count
        self.keys = keys
        self.followed = followed
        self.sha = hashlib.sha1(body.encode(), usedforsecurity=False).hexdigest()

    @cached_property
    def by_digest(self) -> bytes:
        """What comes before the packed keys and arguments."""
        return b"*%d\r\n$7\r\nEVALSHA\r\n%b%b" % (self.count + 3, bulk(self.sha), bulk(self.keys))

    @cached_property
    def by_body(self) -> bytes:
        """The same for a server that does not know the script (any more): it does afterwards."""
        return b"*%d\r\n$4\r\nEVAL\r\n%b%b" % (self.count + 3, bulk(self.body), bulk(self.keys))

    @cached_property
    def and_then(self) -> Script:
        """The same script, where another command follows it."""
        return Script(self.body, self.count, self.keys, followed=True)

    def sized(self, count: int, keys: int) -> Script:
        """Return the same script for another number of keys and arguments."""
        return self if (count, keys) == (self.count, self.keys) else Script(self.body, count, keys)


def load(verb: str, keys: int, arguments: int) -> Script:
    """Return the script of a verb."""
    return Script(_body(verb), keys + arguments, keys)


@cache
def _body(name: str) -> str:
    """Return a file of ``lua/``, with the parts that it shares with others in the place where it says ``-- use:
    these``.

    A script makes its functions anew in each call, up to where it ends: what is not always needed stands last.
    """
    text = (resources.files("django_tasklock.backends") / "lua" / f"{name}.lua").read_text("utf-8")
    return USE.sub(lambda found: "".join(_body(f"_{part}") for part in found[1].split()), text)
