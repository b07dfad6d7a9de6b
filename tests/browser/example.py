"""The example project as an operator meets it: a server, a Redis, people to log in as, and somebody who holds locks.

Everything runs in processes of its own, so a test needs neither Django's ORM nor its settings here.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import secrets
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

import redis

from django_tasklock.backends.redis import RedisBackend
from django_tasklock.conf import Settings
from django_tasklock.types import AcquireRequest
from tests.support.celery_workers import Guardian
from tests.support.processes import processes
from tests.support.redis_server import RedisServer, free_port

__all__ = ["KEY", "SITE", "Answer", "Example", "until"]

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "example_project"
KEY = "a-key-that-only-tests-have-0123456789"
PATIENCE = 30.0
VIDEOS = 5
T = TypeVar("T")


def until(condition: Callable[[], T], seconds: float = PATIENCE, what: str = "") -> T:
    """What ``condition`` returns once that is true, which must be within ``seconds``."""
    ends = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < ends, f"not so within {seconds} s: {what or condition}"
        time.sleep(0.02)
    return value


class Answer(NamedTuple):
    """What a command or curl came to."""

    code: int
    """Exit status of a command; HTTP status of curl."""
    text: str
    headers: dict[str, str]

    @property
    def json(self) -> Any:
        """The text, read as JSON."""
        return json.loads(self.text)


class Example:
    """A context manager: made, migrated, with its people; nothing is left afterwards."""

    def __init__(self, folder: Path, *, lease: float = 60) -> None:
        self.folder = folder
        self.redis = RedisServer()
        self.environment = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "config.settings",
            "DATA_DIR": str(folder),
            "PYTHONPATH": os.pathsep.join([str(SITE), str(ROOT)]),
            "REDIS_URL": f"redis://127.0.0.1:{self.redis.port}",
            "TASKLOCK_LEASE": str(lease),
            "TASKLOCK_API_KEYS": f"grafana={KEY}",
            "PYTHONWARNINGS": "error",
        }
        self._started: list[subprocess.Popen[Any]] = []
        self._lasting: list[subprocess.Popen[Any]] = []
        """Those of them that no ``reset`` ends."""
        self._read = 0

    def __enter__(self) -> Self:
        self.redis.start()
        self.guardian = Guardian()
        self.client = redis.Redis(port=self.redis.port, db=2, decode_responses=True)
        """As ``redis-cli`` would talk to the locks' database."""
        self.store = RedisBackend(Settings(LOCATION=f"redis://127.0.0.1:{self.redis.port}/2"))
        """The lock store, asked from here."""
        pipe = subprocess.PIPE
        try:
            self._worker = self.start(
                "-m", "tests.browser.worker", log="worker.log", stdin=pipe, stdout=pipe, text=True, bufsize=1
            )
            self.session: str = self.worker("prepare", VIDEOS)
            """That of the operator, for the cookie ``sessionid``."""
            self.address = self.serve()
            self._lasting = list(self._started)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *details: object) -> None:
        for process in self._started:
            self.end(process)
        self.guardian.dismiss()
        self.store.close()
        self.client.close()
        self.redis.kill()

    # Processes

    def start(self, *command: str, log: str = "server.log", **options: Any) -> subprocess.Popen[Any]:
        """Start Python with these arguments in the example's folder; what it says goes to the file ``log``."""
        options = {"stdin": subprocess.DEVNULL, "stdout": None, **options}
        with (self.folder / log).open("ab") as file:
            process = subprocess.Popen(
                [sys.executable, *command],
                cwd=SITE,
                env=options.pop("env", self.environment),
                start_new_session=True,
                stderr=file,
                **{**options, "stdout": options["stdout"] or file},
            )
        self.guardian.watch(process.pid)
        self._started.append(process)
        return process

    def end(self, process: subprocess.Popen[Any]) -> None:
        """``kill -9`` of it and its children; returns when nobody is left."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(PATIENCE)
        until(lambda: all(one.group != process.pid for one in processes()), what=f"{process.args} has ended")
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()

    def serve(self, settings: str = "") -> str:
        """Start one more server, by default with the same settings; its address. It is ended by ``reset``."""
        port = free_port()
        environment = {**self.environment, **({"DJANGO_SETTINGS_MODULE": settings} if settings else {})}
        server = self.start("manage.py", "runserver", "--noreload", f"127.0.0.1:{port}", env=environment)

        def answers() -> bool:
            assert server.poll() is None, self.log()
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
            with contextlib.closing(connection), contextlib.suppress(OSError):
                connection.request("HEAD", "/static/videos/icon.svg")
                return connection.getresponse().status == 200
            return False

        until(answers, what="the server answers")
        return f"http://127.0.0.1:{port}"

    def celery(
        self, *arguments: str, slots: int = 1, lease: float | None = None, **environment: str
    ) -> subprocess.Popen[Any]:
        """Start a Celery worker of the site whose transcodes last until ``finish``; it takes messages on return."""
        name = f"celery-{len(self._started)}"
        command = [
            "-m",
            "celery",
            "-A",
            "tests.browser.transcoder",
            "worker",
            f"--concurrency={slots}",
            f"-n{name}@site",
        ]
        quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel=INFO"]
        environment = {**self.environment, "PYTHONWARNINGS": "default", **environment}  # Celery warns of root
        if lease is not None:
            environment["TASKLOCK_LEASE"] = str(lease)
        worker = self.start(*command, *quiet, *arguments, log=f"{name}.log", env=environment)

        def ready() -> bool:
            assert worker.poll() is None, self.log(f"{name}.log")
            return "ready." in self.log(f"{name}.log")

        until(ready, what="the worker is ready")
        return worker

    def worker(self, verb: str, *what: object) -> Any:
        """Have a function of ``worker.py``, beside this, called inside the example; its answer."""
        assert self._worker.stdin is not None
        assert self._worker.stdout is not None
        self._worker.stdin.write(json.dumps([verb, *what]) + "\n")
        line = self._worker.stdout.readline()
        assert line, self.log("worker.log")
        return json.loads(line)

    def finish(self) -> None:
        """Let transcodes end, now and later."""
        (self.folder / "done").touch()

    def log(self, name: str = "server.log") -> str:
        """What the servers said so far."""
        return (self.folder / name).read_text(errors="replace")

    def said(self) -> str:
        """What the servers said since this was asked last."""
        log = self.log()
        new, self._read = log[self._read :], len(log)
        return new

    def check_log(self) -> None:
        """Nothing may have gone wrong in a server. Django has a traceback for every 403 as well: those are left out."""
        said = self.said()
        print(said)  # shown by pytest if the test failed
        assert said.count("Traceback (most recent") == said.count("Forbidden (Permission denied)")

    def manage(self, *arguments: str, ok: Sequence[int] = (0,)) -> Answer:
        """``manage.py ...``; its exit status must be in ``ok``."""
        code, text, errors = self.worker("manage", *arguments)
        answer = Answer(code, text, {"stderr": errors})
        assert answer.code in ok, answer
        return answer

    def curl(self, path: str, *arguments: str) -> Answer:
        """curl with the API key in its header; what it got."""
        key = ["--header", f"Authorization: Api-Key {KEY}"]
        command = ["curl", "--silent", "--show-error", "--max-time", "20", "--include", *key, *arguments]
        done = subprocess.run([*command, self.address + path], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        head, _, text = done.stdout.replace("\r\n", "\n").partition("\n\n")
        first, *lines = head.splitlines()
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        return Answer(int(first.split()[1]), text, headers)

    # What there is

    def sql(self, statement: str, *values: object) -> list[dict[str, Any]]:
        """One statement on the site's database."""
        with contextlib.closing(sqlite3.connect(self.folder / "db.sqlite3", timeout=20)) as connection, connection:
            connection.row_factory = sqlite3.Row
            return [dict(row) for row in connection.execute(statement, values)]

    def row(self, pk: int) -> dict[str, Any]:
        """A video as the database has it."""
        [row] = self.sql("SELECT * FROM videos_video WHERE id = ?", pk)
        return row

    def reset(self) -> None:
        """No locks, nobody at work, no history, every video waiting."""
        if not self.redis.answers():
            self.redis.start()
        self.worker("rest")
        for process in [one for one in self._started if one not in self._lasting]:
            self.end(process)
            self._started.remove(process)
        self.client.flushall()
        self.sql(
            "UPDATE videos_video SET status = 'uploading', progress = 0, hls_file = NULL, lock_token = '',"
            " lock_epoch = 0, title = 'Video ' || id"
        )
        for table in ("tasklock_audit", "tasklock_parked", "tasklock_sweep", "django_admin_log", "videos_attempt"):
            self.sql(f"DELETE FROM {table}")
        (self.folder / "done").unlink(missing_ok=True)
        self.said()

    # Locks

    def lock(
        self, name: str, *, seconds: float = 60, lease: float | None = None, fresh: bool = True, **holder: object
    ) -> str:
        """A lock as somebody far away holds it, who says this of itself; its token."""
        token = secrets.token_hex(16)
        known = {"host": "far-away", "pid": 4711, "boot": "b00t", "task": "videos.tasks.report", "task_id": "t-1"}
        grant = self.store.acquire(
            AcquireRequest(
                name,
                token,
                ttl_ms=round((lease or seconds) * 1000),
                hold_ms=round(seconds * 1000),
                holder=json.dumps({**known, **holder}, separators=(",", ":")),
            )
        )
        assert not hasattr(grant, "record"), grant
        return token
