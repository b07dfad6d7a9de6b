"""uWSGI loads the application, then forks without Python's fork hooks: each worker still is a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from tests.support.redis_server import free_port

pytestmark = [pytest.mark.redis, pytest.mark.slow]
PATIENCE = 60.0
PROGRAM = Path(sys.prefix, "bin", "uwsgi")
Ask = Callable[[str], dict[str, Any]]


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    """``ask("/verb/name")`` is what one of two worker processes answers, each with three threads."""
    if not PROGRAM.exists():
        pytest.skip("uWSGI is not installed: make test-all installs it")
    port, project, log = free_port(), Path(__file__).parents[2], tmp_path_factory.mktemp("uwsgi") / "log"
    command = [str(PROGRAM), "--master", "--no-orphans", "--die-on-term", "--need-app", "--processes=2", "--threads=3"]
    command += [f"--http-socket=127.0.0.1:{port}", f"--pythonpath={project}", f"--virtualenv={sys.prefix}"]
    command += ["--module=tests.support.uwsgi_app", "--disable-logging"]
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"}
    with log.open("wb") as output, subprocess.Popen(command, env=environment, stdout=output, stderr=output) as master:

        def answer(path: str) -> dict[str, Any]:
            with urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE) as response:
                return dict(json.load(response))

        try:
            ends = time.monotonic() + PATIENCE
            while b"spawned uWSGI worker 2" not in log.read_bytes():
                assert master.poll() is None, log.read_text()
                assert time.monotonic() < ends, log.read_text()
                time.sleep(0.05)
            yield answer
        finally:
            master.kill()  # its workers end with it
        print(log.read_text())


def test_two_processes_never_run_one_name_at_once(ask: Ask) -> None:
    refused = set()
    with ThreadPoolExecutor(1) as pool:
        holding = pool.submit(ask, "/hold/one")
        while not holding.done():
            attempt = ask("/attempt/one")
            if attempt["acquired"]:  # before the other, or after
                assert attempt["inside"] == 1
            else:
                assert not attempt["inherited"]
                refused.add(attempt["pid"])
            time.sleep(0.05)
    held = holding.result()
    assert held == {"pid": held["pid"], "acquired": True, "inside": 1, "named": True, "released": True}
    assert refused - {held["pid"]}


def test_no_process_reads_the_replies_to_another(ask: Ask) -> None:
    with ThreadPoolExecutor(6) as pool:
        said = list(pool.map(ask, ["/talk/some"] * 24))
    assert len({one["pid"] for one in said}) == 2
