"""How far one has to walk to follow a verb: ``python -m benchmarks.walks``.

Five walks through the package, recorded with ``sys.setprofile`` on a Redis and SQLite of their own, each after the same
walk was taken twice without looking. A *call* is that of a function of the package, a *move* is where the sequence of
calls and returns goes on in another of its files. ``--trace NAME`` prints the sequence itself.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import django_tasklock
from benchmarks.report import Table
from benchmarks.server import Control, Server, running_server

PACKAGE = str(Path(django_tasklock.__file__).parent) + os.sep
Step = Callable[[], object]


class Walk:
    """The calls of one thread into the package, and the files that it was in."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, str, str]] = []
        """Depth, file and function."""
        self.moves = 0
        self._stack: list[str] = []
        self._here = ""

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        name = frame.f_code.co_filename
        if not name.startswith(PACKAGE) or event not in ("call", "return"):
            return
        if event == "call":
            file = name.removeprefix(PACKAGE)
            self.calls.append((len(self._stack), file, frame.f_code.co_qualname))
            self._stack.append(file)
            self._go(file)
        elif self._stack:
            self._stack.pop()
            if self._stack:
                self._go(self._stack[-1])

    @property
    def files(self) -> int:
        """How many files it has been in."""
        return len({file for _, file, _ in self.calls})

    def _go(self, file: str) -> None:
        self.moves += bool(self._here) and file != self._here
        self._here = file


class Counted:
    """One walk, with what it asks of others."""

    def __init__(self, server: Server) -> None:
        from django.db import connection
        from django.db.backends.signals import connection_created

        self.walk = Walk()
        self.trips = self.statements = self.connections = 0
        self._control = Control(server.port)
        self._connection = connection
        self._signal = connection_created

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count what is done meanwhile."""
        before = self._control.counters()[0]
        gc.collect()
        gc.disable()  # what an earlier walk left is none of this one's
        self._signal.connect(self._connected, weak=False)
        try:
            with self._connection.execute_wrapper(self._asked):
                sys.setprofile(self.walk)
                try:
                    yield
                finally:
                    sys.setprofile(None)
        finally:
            gc.enable()
            self._signal.disconnect(self._connected)
        self.trips = self._control.counters()[0] - before
        self._control.close()

    def _asked(self, execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        self.statements += not sql.startswith(("BEGIN", "SAVEPOINT", "RELEASE", "ROLLBACK"))
        return execute(sql, params, many, context)

    def _connected(self, **details: Any) -> None:
        self.connections += 1


def main() -> int:
    """Walk, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.walks", description=__doc__.partition("\n")[0])
    parser.add_argument("--only", action="append", default=[], help="part of a walk's name; may be repeated")
    parser.add_argument("--trace", action="store_true", help="print each call, indented by its depth")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, running_server() as server:
        os.environ["TASKLOCK_BENCH_URL"] = server.url
        os.environ["TASKLOCK_BENCH_DATABASE"] = str(Path(folder) / "db.sqlite3")
        from django.core.management import call_command
        from django.db import connection

        from benchmarks.walks_app import Row

        call_command("migrate", verbosity=0)
        with connection.schema_editor() as editor:
            editor.create_model(Row)
        shown = Table("Walks", ["walk", "calls", "files", "moves", "Redis trips", "statements", "connections"])
        for label, prepare in WALKS.items():
            if options.only and not any(part.lower() in label.lower() for part in options.only):
                continue
            for _ in range(2):
                prepare()()
            step, counted = prepare(), Counted(server)
            with counted.counting():
                step()
            walk = counted.walk
            if options.trace:
                print(f"# {label}")
                for depth, file, function in walk.calls:
                    print(f"{'  ' * depth}{file}: {function}")
            row = (len(walk.calls), walk.files, walk.moves, counted.trips, counted.statements, counted.connections)
            shown.add(label, *map(str, row))
    print(shown)
    return 0


_numbers = count(1)


def acquire() -> Step:
    """``TaskLock.acquire`` of a free lock."""
    from django_tasklock import TaskLock

    lock = TaskLock(f"walk:{next(_numbers)}")
    _kept.append(lock)
    return lock.acquire


def first_delivery() -> Step:
    """A task under ``model_lock``, from the message to its result."""
    from benchmarks.walks_app import deliver, process

    _, message = _published(process)
    return lambda: _expect(deliver(message), "SUCCESS")


def once_delivery() -> Step:
    """A guarded ``OnceTask``, from the message to its result."""
    from benchmarks.walks_app import deliver, once

    _, message = _published(once)
    return lambda: _expect(deliver(message), "SUCCESS")


def once_publish() -> Step:
    """Publishing it."""
    from benchmarks.walks_app import once

    return lambda: once.delay(next(_numbers))


def redelivered() -> Step:
    """The same where an earlier delivery has died and left its lock."""
    from benchmarks.walks_app import deliver, process
    from django_tasklock.backends import get_backend
    from django_tasklock.types import AcquireRequest

    pk, message = _published(process)
    holder = _dead(task=process.name, task_id=message.headers["id"])
    get_backend().acquire(AcquireRequest(f"row:{pk}", os.urandom(16).hex(), 60_000, 600_000, holder))
    return lambda: _expect(deliver(message, redelivered=True), "SUCCESS")


def rate() -> Step:
    """``RateLimiter.acquire`` where the call may be made at once."""
    from django_tasklock import RateLimiter

    return RateLimiter("walk", "100/s").acquire


def release_click() -> Step:
    """The confirmed release of a lock in the admin, answered with a redirect."""
    from django.contrib.admin.utils import quote
    from django.contrib.auth.models import User
    from django.test import Client

    from django_tasklock.backends import get_backend
    from django_tasklock.types import AcquireRequest, fingerprint

    name, token = f"walk:{next(_numbers)}", os.urandom(16).hex()
    get_backend().acquire(AcquireRequest(name, token, 60_000, 600_000, '{"host": "elsewhere", "pid": 1}'))
    client = Client()
    client.force_login(User.objects.get_or_create(username="root", is_staff=True, is_superuser=True)[0])
    data = {"fingerprint": fingerprint(token), "reason": "stuck"}
    url = f"/admin/tasklock/lock/{quote(name)}/release/"
    return lambda: _expect(client.post(url, data).status_code, 302)


def sweep() -> Step:
    """A sweep that finds a dead process's lock and puts its row back."""
    from benchmarks.walks_app import Row
    from django_tasklock.backends import get_backend
    from django_tasklock.operations import sweep as sweep_now
    from django_tasklock.types import AcquireRequest

    token = os.urandom(16).hex()
    row = Row.objects.create(status="busy", lock_token=token, lock_epoch=1)
    holder = _dead(row=f"benchmarks.row:{row.pk}")
    get_backend().acquire(AcquireRequest(f"row:{row.pk}", token, 60_000, 600_000, holder))

    def step() -> None:
        sweep_now(pause=0.0)
        _expect(Row.objects.get(pk=row.pk).lock_token, "")

    return step


WALKS: dict[str, Callable[[], Step]] = {
    "TaskLock.acquire": acquire,
    "model_lock task, first delivery": first_delivery,
    "model_lock task, redelivered": redelivered,
    "OnceTask, publish": once_publish,
    "OnceTask with a guard, first delivery": once_delivery,
    "RateLimiter.acquire": rate,
    "admin: release": release_click,
    "sweep that puts one row back": sweep,
}
_kept: list[object] = []


def _published(task: Any) -> tuple[int, Any]:
    """Publish ``task`` for a new row, and take its message off the queue."""
    from benchmarks.walks_app import Row, app

    row = Row.objects.create()
    with app.connection_for_read() as connection, connection.SimpleQueue(app.conf.task_default_queue) as queue:
        queue.clear()
        task.delay(row.pk)
        message = queue.get(block=False)
        message.ack()
    return row.pk, message


def _dead(**more: str) -> str:
    """The text of a holder of this machine whose process has ended."""
    from django_tasklock.locks.holder import holder_json

    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    return json.dumps({**json.loads(holder_json()), "pid": ended.pid, "boot": "another", **more}, separators=(",", ":"))


def _expect(found: object, wanted: object) -> None:
    if found != wanted:
        raise SystemExit(f"{found!r} where {wanted!r} should be: the walk did not get where it leads")


if __name__ == "__main__":
    sys.exit(main())
