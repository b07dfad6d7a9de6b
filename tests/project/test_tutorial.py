"""The tutorial, followed word by word: an empty folder, a new environment, the wheel, a real worker that is killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.building import build, copied
from tests.support.pages import DOCS, Block, blocks_of
from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.slow

SERVER = "redis://localhost:6379"
PATIENCE = 120
"""Seconds after which a reader thinks that it does not work."""
SHELL = """
import json, sys, traceback
import django

django.setup()
names = {"__name__": "__console__"}
said, sys.stdout = sys.stdout, sys.stderr
for line in sys.stdin:
    try:
        exec(json.loads(line), names)
        print("done", file=said, flush=True)
    except BaseException:
        print(json.dumps(traceback.format_exc()), file=said, flush=True)
"""


class Reader:
    """Somebody with terminals, who does what the page says and nothing else."""

    def __init__(self, directory: Path, wheel: Path, redis: str) -> None:
        self.directory = directory
        self.wheel = wheel
        self.redis = redis
        self.worker: subprocess.Popen[bytes] | None = None
        self.shell: subprocess.Popen[str] | None = None
        self.logs = directory.parent / "worker.log"

    @property
    def environment(self) -> dict[str, str]:
        """That of a terminal; once there is an environment of Python, with that one activated."""
        kept = {key: os.environ[key] for key in ("PATH", "HOME", "LANG", "TMPDIR") if key in os.environ}
        kept |= {key: value for key, value in os.environ.items() if key.startswith(("PIP_", "SSL_", "REQUESTS_"))}
        activated = self.directory / "video-site" / ".venv" / "bin"
        return kept | {"PATH": f"{activated}:{kept['PATH']}", "DJANGO_SETTINGS_MODULE": "config.settings"}

    @property
    def here(self) -> Path:
        """Where the reader has gone to."""
        site = self.directory / "video-site"
        return site if site.exists() else self.directory

    def does(self, block: Block) -> None:
        """Do what a block says: write a file, type a command, or type into the shell."""
        if block.file is not None:
            path = self.here / block.file
            known = path.read_text("utf-8") if path.exists() else ""
            path.write_text(f"{known}\n{block.code.replace(SERVER, self.redis)}", "utf-8")
        elif block.language == "console":
            for line in block.code.splitlines():
                self.types(line.removeprefix("$ "))
        elif block.language == "python":
            self.types_into_the_shell(block)

    def types(self, line: str) -> None:
        """Run it; a worker in a terminal of its own."""
        if line.startswith("celery "):
            with self.logs.open("ab") as log:
                self.worker = subprocess.Popen(
                    line.split(), cwd=self.here, env=self.environment, stdout=log, stderr=log, start_new_session=True
                )
            return
        line = line.replace("pip install django-tasklock ", f"pip install --quiet {self.wheel} ")
        line = line.replace("python3 -m venv", f"{sys.executable} -m venv")
        done = subprocess.run(
            ["bash", "-ec", line],
            cwd=self.here,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
        if line.startswith("kill ") and self.worker is not None:
            assert self.worker.wait(10) == -signal.SIGKILL

    def types_into_the_shell(self, block: Block) -> None:
        """Type it into the one Django shell that is open."""
        if self.shell is None:
            python = self.here / ".venv" / "bin" / "python"
            self.shell = subprocess.Popen(
                [python, "-c", SHELL],
                cwd=self.here,
                env=self.environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        assert self.shell.stdin is not None
        assert self.shell.stdout is not None
        self.shell.stdin.write(json.dumps(block.code) + "\n")
        self.shell.stdin.flush()
        patience = threading.Timer(PATIENCE, self.shell.kill)
        patience.start()
        said = self.shell.stdout.readline().strip()
        patience.cancel()
        assert said == "done", f"{block.where}: {said}\n{self.logs.read_text('utf-8')[-3000:]}"

    def leaves(self) -> None:
        """Close the terminals."""
        if self.shell is not None:
            self.shell.kill()
            self.shell.communicate()
        if self.worker is not None and self.worker.poll() is None:
            os.killpg(self.worker.pid, signal.SIGKILL)
            self.worker.wait()


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """What would be on PyPI."""
    return build("wheel", copied(tmp_path / "tree"), tmp_path)


@pytest.fixture
def reader(tmp_path: Path, wheel: Path) -> Iterator[Reader]:
    with ExitStack() as stack:
        server = stack.enter_context(RedisServer())
        empty = tmp_path / "empty"
        empty.mkdir()
        made = Reader(empty, wheel, f"redis://127.0.0.1:{server.port}")
        stack.callback(made.leaves)
        yield made


def test_word_by_word(reader: Reader) -> None:
    page = DOCS / "tutorial.md"
    for block in blocks_of(page):
        reader.does(block)
    log = reader.logs.read_text("utf-8")
    [promised] = [block.code for block in blocks_of(page) if block.language == "text"]
    assert promised.startswith("skipped: lock 'video:1' is held by ")
    assert re.search(r"skipped: lock 'video:1' is held by \S+:\d+ \(videos\.tasks\.process_video\[", log), log[-3000:]
    assert log.count("celery@") >= 2, "a second worker was started"
