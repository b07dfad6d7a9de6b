"""Lua scripts."""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib import resources

USE = re.compile(r"^ *-- use: (.+)\n", re.MULTILINE)
COMMENT = re.compile(r"^ *--(?! use:).*\n", re.MULTILINE)


class Script:
    """A script and its digest, by which a server finds it once it has run it."""

    def __init__(self, body: str) -> None:
        self.body = body
        self.sha = hashlib.sha1(body.encode(), usedforsecurity=False).hexdigest()


def load(verb: str) -> Script:
    """Return the script ``lua/<verb>.lua``."""
    return Script(_body(verb))


@cache
def _body(name: str) -> str:
    """Return a file of ``lua/`` without comments, each line ``-- use: <parts>`` replaced by the shared files so named.

    Redis creates the functions of a script anew in each call, up to the point where it returns: so parts that are not
    always needed are included as late as possible.
    """
    text = (resources.files("django_tasklock.backends") / "lua" / f"{name}.lua").read_text("utf-8")
    return USE.sub(lambda found: "".join(_body(f"_{part}") for part in found[1].split()), COMMENT.sub("", text))
