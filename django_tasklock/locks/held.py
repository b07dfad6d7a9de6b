"""What the holder of a lock may ask of it: whether it still has it, and whether somebody wants it back."""

from __future__ import annotations

import asyncio
import contextlib

from django_tasklock.context import judge
from django_tasklock.exceptions import BackendUnavailable, LockLost
from django_tasklock.locks.heartbeat import GONE, heartbeat
from django_tasklock.locks.lease import Hold
from django_tasklock.locks.lock_base import LockBase
from django_tasklock.types import Record, monotonic

__all__ = ["Held"]

LOOK = 1.0  # seconds in which ``ensure_held`` asks the store once


class Held(LockBase):
    """The half that changes nothing."""

    @property
    def taken(self) -> bool:
        """Whether there is something to release: held, lost, or run without the lock."""
        return self._find() is not None

    @property
    def held(self) -> bool:
        """Whether it is certainly still yours."""
        hold = self._find()
        return hold is not None and not hold.unlocked and not hold.lost

    @property
    def lost(self) -> bool:
        """Whether the lease is certainly gone although it was not released."""
        hold = self._find()
        return hold is not None and bool(hold.lost)

    @property
    def asked(self) -> bool:
        """Whether somebody asks for it: known since the last heartbeat or ``ensure_held()``."""
        hold = self._find()
        return hold is not None and hold.asked

    def ensure_held(self) -> None:
        """Raise ``LockLost`` if the lock is not certainly yours: call it before a step that must not run twice.

        So it raises where the body runs without the lock (``on_unavailable="run"``), until the lock is taken after
        all. Raises ``ReleaseAsked`` if an operator asks for the lock. It asks the store once a second at most, in a
        coroutine never: see ``aensure_held``. With the store down what is known here decides.
        """
        hold = self._mine()
        heartbeat.ensure_alive()
        if asyncio._get_running_loop() is None and self._due_to_look(hold):
            with contextlib.suppress(BackendUnavailable):
                self._looked(hold, hold.backend.mine(self.name, hold.token))
        self._judge(hold)

    async def aensure_held(self) -> None:
        """``ensure_held`` for coroutines."""
        hold = self._mine()
        heartbeat.ensure_alive()
        if self._due_to_look(hold):
            with contextlib.suppress(BackendUnavailable):
                self._looked(hold, await hold.backend.amine(self.name, hold.token))
        self._judge(hold)

    @property
    def fence(self) -> int:
        """A number greater than that of every earlier holder of this name; 0 when run without the lock."""
        return self._mine().fence

    @property
    def token(self) -> str:
        """The proof of ownership. Secret."""
        return self._mine().token

    @property
    def time_left(self) -> float:
        """Seconds until the timeout."""
        return max(0.0, self._mine().until - monotonic())

    def _due_to_look(self, hold: Hold) -> bool:
        """Whether ``ensure_held`` asks the store: it hears of a lost lock, and of who asks for it, at once."""
        now = monotonic()
        if hold.unlocked or hold.lost or hold.asked or now < hold.looked + LOOK:
            return False
        hold.looked = now
        return True

    def _looked(self, hold: Hold, record: Record | None) -> None:
        """What the store said."""
        if record is None or record.token != hold.token:
            if hold.lose(GONE):  # the heartbeat drops it at its next turn
                self._on_lost(hold.lost)
        elif record.asked and hold.ask():
            self._on_asked()

    def _judge(self, hold: Hold) -> None:
        judge(self, hold)
        if hold.unlocked:
            raise LockLost(
                f"{self.noun} {self.name!r} is not held: the store could not be asked, and on_unavailable='run' let"
                " the body begin without it",
                name=self.name,
            )
