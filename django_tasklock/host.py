"""Who runs the code of this process: nobody in particular, or a task queue, which installs a host of its own."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

Strategy = TypeVar("Strategy")


class Task(NamedTuple):
    """The task that runs here."""

    name: str
    id: str
    retries: int = 0


class Host:
    """What runs us, where that is nobody in particular. A task queue overrides what it knows better."""

    def runs_task(self) -> bool:
        """Tell whether a task runs in this thread: whoever acquires a lock asks, and nearly always none does."""
        return False

    def current_task(self) -> Task | None:
        """Return the task that runs in this thread, the published one, whatever it calls directly; or ``None``."""
        return None

    def will_retry(self, error: BaseException) -> bool:
        """Tell whether the body that ended with ``error`` will be run again, as far as can be known."""
        return False

    def strategy_for(self, decorated: object, plain: type[Strategy]) -> type[Strategy]:
        """Return the strategy of a call, here and now, of the function that has ``decorated`` for its lock or limiter.

        ``plain``: the one where nobody knows better.
        """
        return plain

    def take_turn(self, limit: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Wait for the turn of a rate-limited call, where that can be done better than by sleeping; else return False.

        May leave by raising, if the call is to be made again later by somebody else.
        """
        return False


current = Host()
"""The host of this process."""


def host() -> Host:
    """Return the host of this process."""
    return current


def install(new: Host) -> None:
    """Let ``new`` be the host of this process."""
    global current
    current = new
