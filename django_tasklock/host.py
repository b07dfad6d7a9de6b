"""The environment in which this process runs code: plain Python, or a task queue, which installs its own ``Host``."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

Strategy = TypeVar("Strategy")


class Task(NamedTuple):
    """The task that runs in this thread."""

    name: str
    id: str
    retries: int = 0


class Host:
    """The environment of a process without a task queue. A task queue overrides the methods it can answer better."""

    def runs_task(self) -> bool:
        """Return whether a task runs in this thread. Called on every acquisition of a lock, and nearly always false."""
        return False

    def current_task(self) -> Task | None:
        """Return the published task that runs in this thread, even inside tasks that it calls directly; or ``None``."""
        return None

    def will_retry(self, error: BaseException) -> bool:
        """Return whether the body that ended with ``error`` will be run again, as far as can be known."""
        return False

    def strategy_for(self, decorated: object, plain: type[Strategy]) -> type[Strategy]:
        """Return the strategy class for the current call of a function with this lock or limiter.

        ``decorated``: the lock or limiter; ``plain``: the class to use outside of a task queue.
        """
        return plain

    def take_turn(self, limit: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Wait for the turn of a rate-limited call, if the host has a better way than sleeping; otherwise return False.

        May raise, if the host schedules the call for later.
        """
        return False


current = Host()
"""The host of this process."""


def host() -> Host:
    """Return the host of this process."""
    return current


def install(new: Host) -> None:
    """Make ``new`` the host of this process."""
    global current
    current = new
