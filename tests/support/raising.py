"""What runs in a process that knows nothing of Django or of the tests."""

from __future__ import annotations

__all__ = ["raise_again"]


def raise_again(error: BaseException) -> None:
    """Let ``error`` travel back."""
    raise error
