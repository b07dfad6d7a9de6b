"""What the fixture ``celery_site`` gives to a test."""

from __future__ import annotations

import contextlib
import itertools
import secrets
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Self, TypeVar

import redis
from celery import Celery, _state
from celery.result import AsyncResult
from kombu import pools

from django_tasklock import get_lock_info
from django_tasklock.celery import parked_messages
from django_tasklock.locks.info import LockInfo
from tests.support import brokers
from tests.support.celery_site import journal
from tests.support.celery_site.configuration import ENVIRONMENT, Configuration
from tests.support.celery_workers import Guardian, Worker
from tests.support.redis_server import RedisServer
from tests.support.stores import eventually

__all__ = ["Gate", "Site"]

T = TypeVar("T")


class Gate(str):
    """A path, as the argument ``until`` of a task; the task ends when the gate is opened."""

    def open(self) -> None:
        """Let go whoever waits or will wait for it."""
        Path(self).touch()


class Site:
    """An app, its stores, its workers. Published from here, run there; nobody is left afterwards."""

    def __init__(self, folder: Path, settings: Any, broker: str | None, tasks: tuple[str, ...] = ()) -> None:
        self.folder = folder
        self.journal_file = folder / "journal"
        self.broker = RedisServer()
        """The Redis with the results (database 1), and with the messages (database 0) unless RabbitMQ has those."""
        self.lock_store = RedisServer()
        """The Redis with the locks alone; ``FLUSHALL`` or kill it."""
        self.is_amqp = broker is not None
        self.workers: list[Worker] = []
        name = f"site-{secrets.token_hex(4)}"
        self._queues = {name}
        self._gates = itertools.count()
        self._settings = settings
        self.configuration = Configuration(
            name=name,
            broker=broker or f"redis://127.0.0.1:{self.broker.port}/0",
            results=f"redis://127.0.0.1:{self.broker.port}/1",
            tasks=("tests.support.celery_site.tasks", *tasks),
            # What comes again while it runs is what many tests are about; those of the lease ask for one.
            tasklock={"LOCATION": self.lock_store.url, "MESSAGE_LEASE": None},
        )

    def __enter__(self) -> Self:
        self._apps_before = _state._tls.current_app, _state.default_app
        self.broker.start()
        self.lock_store.start()
        self.locks = redis.Redis.from_url(self.lock_store.url)
        """A client of the lock store."""
        self._guardian = Guardian()
        self.app: Celery = self.configuration.make_app()
        self.app.conf.result_backend_thread_safe = True  # one for all threads, so that it can be closed
        self.app.set_default()  # for the test's other threads
        self.configure()
        with warnings.catch_warnings():
            # Tests before this one have used a name twice, and Celery shares the tasks of all apps with new ones.
            warnings.filterwarnings("ignore", "Task name .* is already registered")
            self.app.finalize()
        return self

    def __exit__(self, *details: object) -> None:
        for worker in self.workers:
            worker.kill()
        self._guardian.dismiss()
        if self.is_amqp:
            brokers.clean(self.app, self._queues, [worker.name for worker in self.workers])
        self.app.amqp.producer_pool.force_close_all()
        self.app.pool.force_close_all()
        for group in (pools.producers, pools.connections):  # another site may have the same address one day
            with contextlib.suppress(KeyError):
                del group[self.app.connection_for_write()]
        results = self.app.backend
        results.remove_pending_result = lambda result: result  # AsyncResult.__del__, after the store has gone
        results.result_consumer.stop()
        results.client.close()
        self.app.close()
        _state._set_current_app(self._apps_before[0])
        _state.set_default_app(self._apps_before[1])
        self.locks.close()
        self.lock_store.kill()
        self.broker.kill()

    def configure(self, **options: Any) -> None:
        """Before anything is published or started.

        ``lease``, ``timeout`` and those in ``tasklock={...}`` are of ``TASKLOCK``, ``visibility_timeout`` is of the
        broker, ``tasks`` are more modules, and all others are Celery's settings.
        """
        self.configuration = self.configuration.with_options(**options)
        for module in self.configuration.tasks:
            import_module(module)
        self.app.conf.update(self.configuration.conf())
        self._settings.TASKLOCK = self.configuration.tasklock

    # Workers

    def worker(self, **options: Any) -> Worker:
        """A worker that takes messages: see ``start``."""
        worker = self.start(**options)
        worker.wait_until_ready()
        return worker

    def start(
        self,
        *,
        pool: str = "prefork",
        concurrency: int = 1,
        prefetch: int = 1,
        queues: tuple[str, ...] = (),
        arguments: tuple[str, ...] = (),
        **options: Any,
    ) -> Worker:
        """Start a worker and do not wait for it. ``queues``: short names instead of the site's own queue;
        ``arguments``: more of the command's; ``options``: as those of ``configure``, for this worker.
        """
        options["worker_prefetch_multiplier"] = prefetch
        command = [f"--pool={pool}", f"--concurrency={concurrency}", "--loglevel=INFO"]
        command += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
        if queues:
            command.append("--queues=" + ",".join(map(self.queue, queues)))
        environment = {
            "DJANGO_SETTINGS_MODULE": "tests.support.celery_site.settings",
            ENVIRONMENT: self.configuration.with_options(**options).as_json(),
            journal.ENVIRONMENT: str(self.journal_file),
        }
        name = f"w{len(self.workers) + 1}@{self.configuration.name}"
        worker = Worker(name, [*command, *arguments], environment, self.folder, self._guardian)
        self.workers.append(worker)
        return worker

    def queue(self, short: str = "") -> str:
        """The full name of one more queue, for ``options={"queue": ...}``; of the site's own without a name."""
        name = f"{self.configuration.name}.{short}" if short else self.configuration.name
        self._queues.add(name)
        return name

    # Tasks

    def publish(
        self,
        task: Any,
        *args: Any,
        once: dict[str, Any] | None = None,
        options: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> AsyncResult[Any]:
        """``apply_async`` of a task or of the one with that name, whose module may be left out.

        ``options``: those of ``apply_async``; ``kwargs``: the task's own.
        """
        if isinstance(task, str):
            task = self.task(task)
        more = dict(options or {})
        if once is not None:
            more["once"] = once
        return task.apply_async(args, kwargs, **more)

    def task(self, name: str) -> Any:
        """The task of this name; its module may be left out if no other has a task of that name."""
        found = [task for full, task in self.app.tasks.items() if name in (full, full.rpartition(".")[2])]
        ours = [task for task in found if task.name.rpartition(".")[0] in self.configuration.tasks] or found
        assert len(ours) == 1, f"{len(ours)} tasks are called {name!r}"
        return ours[0]

    def result(self, task_id: str | AsyncResult[Any]) -> AsyncResult[Any]:
        """Its state and result as the result store has them now."""
        return self.app.AsyncResult(str(task_id))

    def outcome(self, task_id: str | AsyncResult[Any], seconds: float = 30.0) -> tuple[str, Any]:
        """(state, result) once it has ended, which must be within ``seconds``. Ignored and rejected tasks never do."""
        result = self.result(task_id)
        self.wait_until(result.ready, seconds)
        return result.state, result.result

    def gate(self) -> Gate:
        """A closed gate."""
        return Gate(self.folder / f"gate-{next(self._gates)}")

    # What there is

    def events(self, event: str | None = None, key: object = None) -> list[journal.Event]:
        """The journal so far, or those of its events that are of this kind and of this key."""
        return [
            one
            for one in journal.read(self.journal_file)
            if event in (None, one.event) and (key is None or one.key == str(key))
        ]

    def started(self, key: object = None, number: int = 1, seconds: float = 30.0) -> journal.Event:
        """The ``number``-th ``start`` of this key, which must come within ``seconds``."""
        self.wait_until(lambda: len(self.events("start", key)) >= number, seconds)
        return self.events("start", key)[number - 1]

    def accepted(self, worker: Worker, number: int = 1) -> None:
        """Until the main process of ``worker`` knows that so many tasks run. What it was not yet told of when it is to
        shut down it does not cancel: it waits for the end."""
        inspect = self.app.control.inspect([worker.name], timeout=1)
        self.wait_until(lambda: len((inspect.active() or {}).get(worker.name, ())) >= number)

    def lock(self, name: str) -> LockInfo | None:
        """What the lock store says of this lock; ``None``: it is free."""
        return get_lock_info(name)

    def is_parked(self, task_id: str | AsyncResult[Any]) -> bool:
        """Whether this message waits for its lock in the table."""
        return any(one.task_id == str(task_id) and one.state == "parked" for one in parked_messages())

    def waiting(self, queue: str = "") -> int:
        """How many messages no worker has been given yet."""
        return brokers.waiting(self.app, self.queue(queue))

    def wait_until(self, condition: Callable[[], T], seconds: float = 30.0) -> T:
        """What ``condition`` returns once that is true."""
        return eventually(condition, seconds, self._story)

    def _story(self) -> str:
        dead = [
            f"{worker.name} ended with {worker.process.returncode}" for worker in self.workers if not worker.alive()
        ]
        return "\n".join(["the journal:", *map(str, self.events()[-20:]), *dead, *self._left()])

    def _left(self) -> list[str]:
        """What is kept and what is locked, if the stores can be asked."""
        try:
            return [*map(str, parked_messages()), *map(str, self.locks.keys("task_lock:*"))]
        except Exception as error:
            return [f"what is left is not known: {error}"]
