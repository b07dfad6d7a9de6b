"""The host: what runs the code of this process. A task queue installs a host of its own."""

from __future__ import annotations

from typing import Any, NamedTuple


class Task(NamedTuple):
    """The task that runs in this thread."""

    name: str
    id: str
    retries: int = 0


class Host:
    """The host of a plain process, without tasks. A task queue overrides its methods."""

    def runs_task(self) -> bool:
        """Tell whether a task runs in this thread. It should be fast, because every acquisition of a lock asks."""
        return False

    def current_task(self) -> Task | None:
        """Return the task that runs in this thread, not one that it calls directly; ``None`` if no task runs."""
        return None

    def will_retry(self, error: BaseException) -> bool:
        """Tell whether the body that ended with ``error`` will be run again, as far as the host knows."""
        return False

    def join(self, decorated: object, call: Any) -> Any:
        """Return the ``Caller`` by which this host joins in the call of a decorated function; ``None``: it does not.

        ``decorated``: the function's ``lock`` or ``limiter``.
        """
        return None

    def tenant_of(self, decorated: object) -> str | None:
        """Return the tenant whose publisher asked for the current call of a decorated function; ``None``: unknown."""
        return None

    def take_turn(self, limit: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Wait for the turn of a rate-limited call in the host's own way and return its reservation.

        Return ``None`` to let it sleep. It may raise, if the call is to be made again later, in another process.
        """
        return None

    def asker(self) -> str:
        """Return the running task as the end of a log line, ``; asked for by videos.tasks.process[id]``, or nothing."""
        task = self.current_task()
        return "" if task is None else f"; asked for by {task.name}[{task.id}]"


current = Host()
"""The host of this process."""


def host() -> Host:
    """Return the host of this process."""
    return current


def install(new: Host) -> None:
    """Set the host of this process."""
    global current
    current = new
