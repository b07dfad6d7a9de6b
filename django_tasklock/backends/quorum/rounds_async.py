"""The same for coroutines: the questions go out together on the connections of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import monotonic

from django_tasklock.backends.quorum.asking import NOT_SENT, Answer, Pause, Question, T, Verb
from django_tasklock.backends.quorum.instances import Instance
from django_tasklock.backends.quorum.rounds import GRACE, LIMIT
from django_tasklock.exceptions import BackendUnavailable

_late: set[asyncio.Task[object]] = set()  # a loop keeps its tasks weakly


class AsyncRounds:
    """Runs verbs for the event loops of this process."""

    def __init__(self, instances: Sequence[Instance], needed: int) -> None:
        self._instances = instances
        self._needed = needed

    async def run(self, verb: Verb[T]) -> T:
        """Run a verb to its end."""
        try:
            ask = next(verb)
            while True:
                if isinstance(ask, Pause):
                    await asyncio.sleep(ask.seconds)
                    ask = verb.send([])
                else:
                    ask = verb.send(await self._exchange(ask))
        except StopIteration as done:
            result: T = done.value
            return result

    async def _exchange(self, ask: Question) -> list[Answer]:
        found = await self._round(ask, [NOT_SENT] * len(self._instances))
        if ask.again and ask.only is None and sum(one.error is None for one in found) < self._needed:
            found = await self._round(ask, found)
        return found

    async def _round(self, ask: Question, before: list[Answer]) -> list[Answer]:
        found = list(before)
        indexes = [
            index
            for index in range(len(self._instances))
            if before[index].error is not None and (ask.only is None or index in ask.only)
        ]
        awake = [index for index in indexes if ask.only is not None or not self._instances[index].rests]
        if ask.only is None and len(awake) + len(found) - len(indexes) < self._needed:
            awake = indexes
        for index in set(indexes) - set(awake):
            found[index] = Answer(error=self._instances[index].error or NOT_SENT.error)
        loop = asyncio.get_running_loop()
        tasks = {loop.create_task(self._instances[index].acall(ask.script, ask.tail)): index for index in awake}
        waiting = set(tasks)
        ends, hurried = monotonic() + LIMIT, False
        try:
            while waiting and not (ask.enough is not None and ask.enough(found)):
                done, waiting = await asyncio.wait(
                    waiting, timeout=max(0.0, ends - monotonic()), return_when=asyncio.FIRST_COMPLETED
                )
                if not done:
                    break
                for task in done:
                    found[tasks[task]] = self._answer(self._instances[tasks[task]], task, before[tasks[task]].sent)
                if not (hurried or ask.patient) and sum(one.error is None for one in found) >= self._needed:
                    ends, hurried = min(ends, monotonic() + GRACE), True
        finally:
            for task in waiting:  # what is on its way is executed, and its answer dropped
                _late.add(task)
                task.add_done_callback(_dropped)
        for task in waiting:
            found[tasks[task]] = Answer(error=TimeoutError("no answer in time"), sent=True)
        return found

    @staticmethod
    def _answer(instance: Instance, task: asyncio.Task[object], doubt: bool) -> Answer:
        error = task.exception()
        if error is None:
            instance.answered()
            return Answer(task.result(), doubt=doubt)
        if isinstance(error, BackendUnavailable):
            cause = error.__cause__
            if error.down:
                instance.failed(error)
            return Answer(error=cause if isinstance(cause, Exception) else error, sent=error.doubt, doubt=doubt)
        if isinstance(error, Exception):
            return Answer(error=error, sent=True, doubt=doubt)
        raise error


def _dropped(task: asyncio.Task[object]) -> None:
    _late.discard(task)
    if not task.cancelled():
        task.exception()
