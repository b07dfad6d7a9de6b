"""What a sweep costs: 1,000,000 expired index entries and 100,000 live locks, on a real Redis.

``python -m benchmarks.sweep [--expired N] [--live N] [--dead N]``. It prints the rates, the time, and how much memory
the sweeping process grew by; the exit code is 1 if a live lock was touched or anything was left.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import os
import re
import sys
import tempfile
import threading
import time
from pathlib import Path

from benchmarks.server import running_server

INDEX = "task_lock#index"
AT_ONCE = 10_000  # keys that are made by one pipeline
DEAD = 2**22 + 1  # greater than any pid of Linux


def main() -> int:
    """Seed, sweep, and print what it took."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sweep", description=__doc__)
    parser.add_argument("--expired", type=int, default=1_000_000, help="entries that lapsed (default: 1000000)")
    parser.add_argument("--live", type=int, default=100_000, help="locks that are held (default: 100000)")
    parser.add_argument("--dead", type=int, default=1_000, help="of which by dead processes (default: 1000)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, running_server() as server:
        os.environ["TASKLOCK_BENCH_URL"] = server.url
        os.environ["TASKLOCK_BENCH_DATABASE"] = str(Path(folder) / "db.sqlite3")
        from django.core.management import call_command

        from benchmarks.queue_app import app

        assert app
        logging.getLogger("django_tasklock").setLevel(logging.ERROR)  # a line for every lock that is released
        call_command("migrate", verbosity=0)
        began = time.monotonic()
        what = (server.url, options.expired, options.live, options.dead)
        child = multiprocessing.get_context("fork").Process(target=seed, args=what)  # its memory is not the sweep's
        child.start()
        child.join()
        print(f"seeded in {time.monotonic() - began:.1f} s", file=sys.stderr)
        return sweep_and_tell(server.url, options.live - options.dead)


def seed(url: str, expired: int, live: int, dead: int) -> None:
    """Locks as the scripts leave them: a value with an expiry, and a place in the index."""
    import redis

    from django_tasklock.locks.holder import holder_json

    holder = json.loads(holder_json())
    ended = json.dumps({**holder, "pid": DEAD, "boot": "0"}, separators=(",", ":"))
    elsewhere = json.dumps({**holder, "host": "elsewhere", "boot": "0", "proc": "0:0"}, separators=(",", ":"))
    with redis.Redis.from_url(url) as client:
        now = int(client.time()[0]) * 1000  # type: ignore[index]
        for start in range(0, expired, AT_ONCE):
            keys = {f"task_lock:old:{number}": number for number in range(start, min(expired, start + AT_ONCE))}
            client.zadd(INDEX, {key: now - 3_600_000 + number for key, number in keys.items()})
        for start in range(0, live, AT_ONCE):
            pipe = client.pipeline(transaction=False)
            scores = {}
            for number in range(start, min(live, start + AT_ONCE)):
                who = ended if number < dead else elsewhere
                value = f'{{"token":"{number:032x}","holder":{who},"at":{now + number // 100},"fence":{number}'
                value += f',"until":{now + 7_200_000}}}'
                scores[f"task_lock:live:{number}"] = ends = now + 3_600_000 + number // 100
                pipe.set(f"task_lock:live:{number}", value, pxat=ends)  # as in the scripts: the index says when it ends
            pipe.execute()
            client.zadd(INDEX, scores)


def sweep_and_tell(url: str, live: int) -> int:
    """Sweep twice, dry and in earnest, with a look at how long others wait for the store meanwhile."""
    from django_tasklock.backends import get_backend
    from django_tasklock.operations.sweep import sweep

    wrong = 0
    for dry_run in (True, False):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak is counted from now on
        before = memory("VmRSS")
        with Waits(url) as waits:
            report = sweep(dry_run=dry_run, pause=1.0)
        grown = (memory("VmHWM") - before) / 1024
        what = "dry run" if dry_run else "sweep"
        counts = {str(kind): one.acted for kind, one in report.counts.items() if one.found}
        print(f"{what}: {report.seconds:.1f} s, looked at {dict(report.looked_at)}, acted {counts}")
        print(
            f"  memory grew by {grown:.0f} MiB; others waited {1000 * waits.longest:.0f} ms for the store at the most"
        )
    found = get_backend().counts()
    print(f"left: {found}")
    if (found.live, found.orphaned) != (live, 0):
        print(f"WRONG: {live} live ones were to be left, and nothing else", file=sys.stderr)
        wrong = 1
    return wrong


def memory(what: str) -> int:
    """KiB: what this process has (``VmRSS``), or had at the most (``VmHWM``)."""
    return int(re.findall(rf"{what}:\s+(\d+)", Path("/proc/self/status").read_text(encoding="ascii"))[0])


class Waits:
    """Asks the store all the time, as a lock does, and notes the longest wait."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.longest = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)

    def _ask(self) -> None:
        import redis

        with redis.Redis.from_url(self.url) as client:
            client.ping()
            while not self._ended.wait(0.02):
                began = time.monotonic()
                client.get("task_lock:live:1")
                self.longest = max(self.longest, time.monotonic() - began)

    def __enter__(self) -> Waits:
        self._thread.start()
        return self

    def __exit__(self, *details: object) -> None:
        self._ended.set()
        self._thread.join()


if __name__ == "__main__":
    sys.exit(main())
