"""From celery-once and celery-singleton in three deploys, with real workers of both versions: never twice at once.

Each version is a project made from the guide's own blocks. Their empty bodies note when they begin and end, and wait
for a file between.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import pytest
import redis

from tests.project.test_migrations import PACKAGES, part
from tests.support import environment
from tests.support.pages import DOCS, ROOT, Project
from tests.support.redis_server import RedisServer

pytest_plugins = ["tests.support.page_fixtures"]
pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.workers]

WORK = """
import time
from pathlib import Path

def work(here=Path({0!r})):
    with (here / "journal").open("a") as journal:
        journal.write("+")
    while not (here / "gate").exists():
        time.sleep(0.05)
    with (here / "journal").open("a") as journal:
        journal.write("-")
"""
PLACES = """
CELERY_BROKER_URL = TASKLOCK["LOCATION"] = "redis://localhost:6379/0"
CELERY_TASK_ACKS_LATE = True
"""
LEASE = 3.0
"""Of messages, in seconds; that of the tutorial and the default are longer."""
DELAY = """
from videos.tasks import make_thumbnail

try:
    make_thumbnail.delay(7)
except Exception as refused:
    assert type(refused).__name__ == "AlreadyQueued", repr(refused)
"""


class Rollout:
    """Three versions of a site, and the workers that run at the moment."""

    def __init__(self, guide: Path, tutorial: Project, directory: Path, stack: ExitStack) -> None:
        self.directory = directory
        self.stack = stack
        self.client = stack.enter_context(redis.Redis.from_url(os.environ[environment.REDIS]))
        before, between, after = (part(guide, name) for name in ("Before", "Without double runs", "After"))
        settings = [block for block in before if block.file == "config/celery.py"]
        blocks = {"old": before, "both": [*settings, *between], "new": after}
        for version, own in blocks.items():
            project = self.project(version)
            tutorial.copy(project.directory)
            project.add("config/settings.py", PLACES)
            project.add("videos/tasks.py", WORK.format(str(directory)))
            for block in own:
                if block.file:
                    project.add(block.file, re.sub(r"\): \.\.\.$", "): work()", block.code, flags=re.MULTILINE))
        self.project("old").add("config/settings.py", "TASKLOCK['MESSAGE_LEASE'] = None  # knows nothing of us")
        for version in ("both", "new"):
            self.project(version).add("config/settings.py", f"TASKLOCK['MESSAGE_LEASE'] = {LEASE}")

    def project(self, version: str) -> Project:
        return Project(self.directory / version)

    def start(self, version: str) -> Callable[[], None]:
        """Start a worker that would run two messages at once; what is returned stops it."""
        log = self.directory / f"{version}.log"
        command = f"-m celery -A config worker --pool threads --concurrency 2 -l INFO -n {version}@here".split()
        with log.open("wb") as out:
            worker = subprocess.Popen(
                [sys.executable, *command],
                cwd=self.directory / version,
                env={**os.environ, "PYTHONPATH": str(ROOT), "DJANGO_SETTINGS_MODULE": "config.settings"},
                stdout=out,
                stderr=out,
            )

        def stop() -> None:
            (self.directory / "gate").touch()  # or its threads wait for ever
            worker.terminate()
            worker.wait(60)

        self.stack.callback(stop)
        self.until(lambda: " ready." in log.read_text("utf-8"))
        return stop

    def publish(self, version: str) -> None:
        self.project(version).shell([("publish:1", "python", DELAY)])

    def journal(self) -> str:
        file = self.directory / "journal"
        return file.read_text("utf-8") if file.exists() else ""

    def logs(self) -> str:
        return "\n".join(log.read_text("utf-8")[-3000:] for log in self.directory.glob("*.log"))

    def until(self, reached: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 90
        while not reached():
            assert time.monotonic() < deadline, f"{self.journal()}\n{self.logs()}"
            time.sleep(0.05)

    def outlived(self) -> bool:
        """Whether a message that nobody renews has been there for two leases."""
        return bool(self.client.zcount("unacked_index", 0, time.time() - 2 * LEASE))

    def idle(self) -> bool:
        return not self.client.llen("celery") and not self.client.hlen("unacked")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A Redis for these workers alone."""
    with RedisServer() as own:
        monkeypatch.setenv(environment.REDIS, f"redis://127.0.0.1:{own.port}/0")
        yield


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("guide", ["celery-once", "celery-singleton"])
def test_step_by_step(guide: str, tutorial: Project, tmp_path: Path) -> None:
    if find_spec(PACKAGES[guide]) is None:
        pytest.skip(f"{guide} is not installed: make test-all does, or pip install '.[peers]'")
    with ExitStack() as stack:
        site = Rollout(DOCS / "migrate" / f"{guide}.md", tutorial, tmp_path, stack)
        for runs, (version, following) in enumerate([("old", "both"), ("both", "new")], 1):
            stop = site.start(version)
            (tmp_path / "gate").unlink(missing_ok=True)
            site.publish(version)
            site.until(lambda runs=runs: site.journal().count("+") == runs)  # type: ignore[misc]
            site.start(following)
            site.publish(version)
            site.publish(following)
            if version == "old":
                site.until(site.outlived)
            else:
                site.until(lambda: "lock 'thumbnail:7' is held by" in site.logs())
            (tmp_path / "gate").touch()
            site.until(site.idle)
            stop()
            assert site.journal() == "+-" * runs
        site.publish("new")
        site.until(lambda: site.journal() == "+-" * 3)
