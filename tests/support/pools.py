"""The pools of a worker that this machine can run."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest

__all__ = ["OTHERS", "needs"]

OTHERS = ("threads", "solo", "gevent")
"""Those beside prefork."""


def needs(pool: str) -> None:
    """Skip where ``pool`` cannot run; fail where everything must be there."""
    if pool == "gevent" and find_spec("gevent") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("gevent is not installed: it is in the extra 'test'")
        pytest.skip("gevent is not installed")
