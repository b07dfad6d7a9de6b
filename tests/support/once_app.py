"""An app whose messages wait in this process, and are run here one at a time as a worker runs them."""

from __future__ import annotations

import itertools
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import redis
from celery import Celery, _state
from celery.app.trace import build_tracer
from celery.worker.strategy import hybrid_to_proto2
from kombu.simple import SimpleQueue

from django_tasklock.celery import OnceTask
from tests.support import environment

__all__ = ["Message", "OnceApp", "once_app"]

_numbers = itertools.count()


class Message(NamedTuple):
    """One that was published."""

    id: str
    task: str
    args: list[Any]
    kwargs: dict[str, Any]
    headers: dict[str, Any]
    rest: dict[str, Any]
    """Of a chain, a group or a chord."""

    @property
    def ours(self) -> dict[str, Any]:
        """The header of this package, but for when and as what it was sent."""
        return {word: value for word, value in self.headers["tasklock"].items() if word not in ("at", "of")}

    @property
    def key(self) -> str:
        """The lock's name that travels in it."""
        return self.ours["key"]  # type: ignore[no-any-return]


class OnceApp:
    """``task(body, ...)`` makes a task, ``take()`` takes the next message out of the queue, ``run()`` runs it."""

    def __init__(self) -> None:
        self.queue = f"once-{os.getpid()}-{next(_numbers)}"
        self.app = Celery("tests.once", broker="memory://", backend="cache+memory://", set_as_current=False)
        self.app.conf.task_default_queue = self.queue
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Task name .* is already registered")  # other tests share theirs
            self.app.finalize()
        self.calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        """What the bodies that ``task`` makes were called with."""

    def body(self, *args: Any, **kwargs: Any) -> str:
        """Takes everything and notes it down."""
        self.calls.append((args, kwargs))
        return "ran"

    def task(self, body: Callable[..., Any] | None = None, **options: Any) -> Any:
        """A task with ``base=OnceTask``; without a body, one that fills ``calls``."""
        if body is None:

            def body(*args: Any, **kwargs: Any) -> str:
                return self.body(*args, **kwargs)

        if not body.__name__.isidentifier():  # Celery makes a function of that name, which a lambda has not
            body.__name__ = "body"
        options.setdefault("name", f"once.task-{next(_numbers)}")
        task = self.app.task(body, base=options.pop("base", OnceTask), shared=False, **options)
        return self.app.tasks[task.name]  # not the proxy, which makes it when it is first used

    def take(self) -> Message | None:
        """The next message, gone from the queue; ``None`` if there is none."""
        with self._simple() as queue:
            try:
                message = queue.get(block=False)
            except queue.Empty:
                return None
            message.ack()
        body, headers = message.payload, dict(message.headers)
        if isinstance(body, dict):  # of task protocol 1
            body, headers, *_ = hybrid_to_proto2(message, body)
        args, kwargs, rest = body
        return Message(headers["id"], headers["task"], args, kwargs, headers, rest)

    def all(self) -> list[Message]:
        """The rest of the messages."""
        found = []
        while (message := self.take()) is not None:
            found.append(message)
        return found

    def run(self, message: Message | None = None, **request: Any) -> tuple[str, Any]:
        """Run it, or the next one, whatever its ETA: (state, result)."""
        message = message or self.take()
        assert message is not None, "there is no message"
        task = self.app.tasks[message.task]
        whole = {
            **message.headers,
            **message.rest,
            "args": message.args,
            "kwargs": message.kwargs,
            "hostname": "worker@tests",
            "is_eager": False,
            "delivery_info": {},
            **request,
        }
        outcome = build_tracer(task.name, task, app=self.app)(message.id, message.args, message.kwargs, whole)
        return ("SUCCESS", outcome[0]) if outcome.info is None else (outcome.info.state, outcome.info.retval)

    def close(self) -> None:
        """Leave no message behind, which would stay in this process."""
        with self._simple() as queue:
            queue.clear()
        self.app.close()

    @contextmanager
    def _simple(self) -> Iterator[SimpleQueue]:
        with self.app.connection_for_read() as connection, connection.SimpleQueue(self.queue) as queue:
            yield queue


@contextmanager
def once_app() -> Iterator[OnceApp]:
    """One for a test. Later tests have the app that was current before: Celery adds no shared tasks to a closed one.

    They find no locks of this one in the Redis of the run, whatever they call their own.
    """
    current, default = _state._tls.current_app, _state.default_app
    app = OnceApp()
    try:
        yield app
    finally:
        app.close()
        _state._set_current_app(current)
        _state.set_default_app(default)
        with redis.Redis.from_url(os.environ[environment.REDIS]) as store:
            store.flushdb()
