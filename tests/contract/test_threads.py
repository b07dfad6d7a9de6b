"""Verbs that run in threads for coroutines: a few at a time, and what a cancelled one is granted is given back."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
import threading
import time
from typing import Any

import pytest

from django_tasklock.backends.contract import threads
from django_tasklock.exceptions import BackendUnavailable
from django_tasklock.types import Grant
from tests.support.stores import eventually

GRANT = Grant(1, 1000)


class Store:
    """One whose verb waits until the test lets it go."""

    def __init__(self) -> None:
        self.begun = 0
        self.most = 0
        self.undone = 0
        self._mutex = threading.Lock()
        self.go = threading.Event()

    def verb(self) -> Grant:
        with self._mutex:
            self.begun += 1
        assert self.go.wait(30)
        return GRANT

    def undo(self) -> None:
        self.undone += 1

    async def ask(self) -> Any:
        return await threads.run(self, "threads", self.verb, self.undo)

    async def begin(self, number: int = 1) -> list[asyncio.Task[Any]]:
        """So many that are being asked."""
        tasks = [asyncio.create_task(self.ask()) for _ in range(number)]
        while self.begun < min(number, threads.MOST):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        return tasks


@pytest.fixture
def store() -> Any:
    found = Store()
    yield found
    found.go.set()


def test_a_few_at_a_time(store: Store) -> None:
    async def main() -> list[Any]:
        tasks = await store.begin(5 * threads.MOST)
        await asyncio.sleep(0.05)
        assert store.begun == threads.MOST
        store.go.set()
        return await asyncio.gather(*tasks)

    assert asyncio.run(main()) == [GRANT] * 5 * threads.MOST


def test_one_that_is_cancelled_in_line_is_not_asked(store: Store) -> None:
    async def main() -> None:
        tasks = await store.begin(threads.MOST + 1)
        tasks[-1].cancel()
        await asyncio.wait([tasks[-1]])
        store.go.set()
        await asyncio.gather(*tasks[:-1])
        await store.ask()  # it has passed the other in line

    asyncio.run(main())
    assert (store.begun, store.undone) == (threads.MOST + 1, 0)


@pytest.mark.parametrize("turns", [0, 1, 3])
def test_cancelled_just_as_the_answer_comes(store: Store, turns: int) -> None:
    """Whichever comes first: whoever does not get the grant has it undone."""

    async def main() -> None:
        (task,) = await store.begin()
        store.go.set()
        time.sleep(0.05)  # noqa: ASYNC251  # the loop does not turn while the thread answers
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        if task.cancelled():
            await asyncio.to_thread(eventually, lambda: store.undone == 1)
        else:
            assert task.result() == GRANT

    asyncio.run(main())


def test_what_comes_after_the_end_of_the_loop_is_undone(store: Store) -> None:
    """Also if the loop is not closed yet, and would take the answer and never look at it."""

    async def main() -> None:
        (task,) = await store.begin()
        task.cancel()
        await asyncio.wait([task])

    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())
    store.go.set()
    eventually(lambda: store.undone == 1)
    loop.close()


def test_who_is_in_line_hears_that_the_store_is_down(store: Store) -> None:
    """Who comes afterwards asks again."""
    asked = 0

    def down() -> None:
        nonlocal asked
        asked += 1
        store.go.wait(30)
        raise BackendUnavailable("no answer", down=True)

    async def main() -> None:
        tasks = [asyncio.create_task(threads.run(store, "threads", down)) for _ in range(3 * threads.MOST)]
        while asked < threads.MOST:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        store.go.set()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert {str(one) for one in found} == {"no answer"}
        assert {one.down for one in found if isinstance(one, BackendUnavailable)} == {True}
        assert asked == threads.MOST
        with pytest.raises(BackendUnavailable):
            await threads.run(store, "threads", down)
        assert asked == threads.MOST + 1

    asyncio.run(main())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
def test_a_forked_child_has_threads_of_its_own_and_a_store_that_hangs_does_not_keep_the_process() -> None:
    """In a process of its own, within a minute."""
    script("""
        import asyncio, os, threading, time
        os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
        import django
        django.setup()
        from django_tasklock.backends.contract import threads

        assert asyncio.run(threads.run(threads, "threads", lambda: 7)) == 7
        child = os.fork()
        if child == 0:
            os._exit(asyncio.run(threads.run(threads, "threads", lambda: 42)))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42

        async def main():
            asyncio.create_task(threads.run(threads, "threads", lambda: (begun.set(), time.sleep(600))))
            await asyncio.sleep(0.1)
            begun.wait(30)

        begun = threading.Event()
        asyncio.run(main())
    """)


def script(code: str) -> None:
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=60)
