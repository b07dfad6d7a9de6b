"""What becomes of messages while whole workers are killed: bare Celery, bare Celery with a short timeout, and leases.

``python -m benchmarks.message_lease [campaign|cost|throughput|all]``. Redis as the broker, late acknowledgement, two
workers with four slots each, tasks of 0.1 to 20 s, every fifth with a countdown. ``cost``: commands a second to the
broker of a worker that has nothing to do but to keep 0, 100 or 10,000 messages. ``throughput``: of tasks that do
nothing.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

from benchmarks.server import Control, Server, running_server

KINDS = ("bare Celery", "bare Celery, visibility_timeout 6 s", "with the app, MESSAGE_LEASE 6 s")
WITHOUT, WITH = KINDS[0], "with the app, MESSAGE_LEASE 60 s"
AT_ONCE = 4
SETTLE = 45.0  # seconds after the last kill: what has not run by then waits


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.message_lease", description=__doc__)
    parser.add_argument("what", nargs="?", default="all", choices=["campaign", "cost", "throughput", "all"])
    parser.add_argument("--kills", type=int, default=20, help="workers killed in each campaign (default: 20)")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds of the throughput (default: 5)")
    parser.add_argument("--messages", type=int, default=2000, help="messages in one of them (default: 2000)")
    parser.add_argument("--seconds", type=float, default=30, help="for which commands are counted (default: 30)")
    options = parser.parse_args()
    with running_server() as server:
        os.environ["TASKLOCK_BENCH_URL"] = server.url
        from benchmarks import lease_app

        control = Control(server.port)
        if options.what in ("campaign", "all"):
            for kind in KINDS:
                control.flush()
                print(campaign(lease_app, kind, options.kills), flush=True)
        if options.what in ("cost", "all"):
            for kind in (WITHOUT, WITH, KINDS[2]):
                for number in (0, 100, 10_000):
                    control.flush()
                    print(cost(lease_app, control, server, kind, number, options.seconds), flush=True)
        if options.what in ("throughput", "all"):
            print(throughput(lease_app, control, options.rounds, options.messages))
        control.close()
    return 0


def campaign(bench: Any, kind: str, kills: int) -> str:
    """Kill whole workers; what became of the messages."""
    random.seed(1)
    sent: dict[str, bool] = {}
    dead: dict[str, float] = {}
    workers = [worker(kind, f"w{number}") for number in range(2)]
    try:
        wait(lambda: len(bench.app.control.ping(timeout=0.5)) == 2)
        for number in range(kills):
            victim, until = workers.pop(0), time.monotonic() + random.uniform(2, 5)
            # The other one is there: it has taken the last one's place.
            while time.monotonic() < until or len(bench.app.control.ping(timeout=0.5)) < 2:
                done = {one.split()[1] for one in events(bench, "end")}
                lacking = AT_ONCE - sum(one not in done for one in sent) if time.monotonic() < until else 0
                for _ in range(lacking):
                    later = len(sent) % 5 == 4
                    seconds = min(20.0, 0.1 * 10 ** random.uniform(0, 2.3))
                    result = bench.long.apply_async((seconds,), countdown=random.uniform(1, 12) if later else None)
                    sent[result.id] = later
                time.sleep(0.05)
            os.killpg(victim.pid, signal.SIGKILL)
            dead[str(victim.pid)] = time.monotonic()
            victim.wait()
            print(f"{kind}: {number + 1} killed", file=sys.stderr)
            workers.append(worker(kind, f"w{number + 2}"))
        ends = time.monotonic() + SETTLE
        while time.monotonic() < ends and len({one.split()[1] for one in events(bench, "end")}) < len(sent):
            time.sleep(0.2)
        return told(kind, sent, dead, events(bench))
    finally:
        for one in workers:
            os.killpg(one.pid, signal.SIGKILL)
            one.wait()


def told(kind: str, sent: dict[str, bool], dead: dict[str, float], lines: list[str]) -> str:
    """The counts."""
    running: dict[str, list[tuple[str, float]]] = {}
    ended, alongside, delays = Counter[str](), set[str](), []
    killed: dict[str, float] = {}
    for line in lines:
        event, task_id, group, text = line.split()
        at, here = float(text), running.setdefault(task_id, [])
        for one in list(here):
            if dead.get(one[0], at + 1) < at:
                here.remove(one)
                killed[task_id] = dead[one[0]]
        if event == "start":
            if here:
                alongside.add(task_id)
            elif task_id in killed:
                delays.append(at - killed.pop(task_id))
            here.append((group, at))
        else:
            ended[task_id] += 1
            here[:] = [one for one in here if one[0] != group]
    again = f"{median(delays):.1f} s, {max(delays):.1f} s at most" if delays else "never"
    return (
        f"{kind}: {len(sent)} messages, {len(dead)} workers killed\n"
        f"  {len(ended):5d} ran to their end, {sum(number > 1 for number in ended.values())} of them more than once\n"
        f"  {len(alongside):5d} ran twice at once, both in living workers\n"
        f"  {len(sent) - len(ended):5d} wait, {SETTLE:g} s after the last kill\n"
        f"        killed bodies began again after {again} ({len(delays)})"
    )


def cost(bench: Any, control: Control, server: Server, kind: str, number: int, seconds: float) -> str:
    """Commands a second of one worker that keeps so many messages."""
    for _ in range(number):
        bench.short.apply_async(countdown=86400)
    client = bench.app.backend.client
    with running(kind, 1):
        wait(lambda: client.zcard("unacked_index") == number, 300)
        time.sleep(20)  # a renewal each 1.5 s: it is in its stride
        before, used = control.counters(), server.cpu_time()
        time.sleep(seconds)
        after = control.counters()
    trips, commands = ((b - a) / seconds for a, b in zip(before, after, strict=True))
    share = (server.cpu_time() - used) / seconds
    return (
        f"{kind}, {number} messages: {commands:.1f} commands/s, {trips:.1f} trips/s, {share:.2%} of the server's time"
    )


def throughput(bench: Any, control: Control, rounds: int, messages: int) -> str:
    """Messages a second, with and without."""
    taken: dict[str, list[float]] = {WITHOUT: [], WITH: []}
    client = bench.app.backend.client
    for number in range(rounds):
        for kind in random.sample(list(taken), len(taken)):
            control.flush()
            for _ in range(messages):
                bench.short.delay()
            began = time.monotonic()
            with running(kind, 1, wait_for_it=False):
                wait(lambda: int(client.get("done") or 0) >= messages // 10, 120)
                began = time.monotonic()
                wait(lambda: int(client.get("done") or 0) >= messages, 300)
                taken[kind].append(messages * 0.9 / (time.monotonic() - began))
            print(f"round {number}: {kind}: {taken[kind][-1]:.0f}/s", file=sys.stderr)
    ratios = [there / bare for bare, there in zip(taken[WITHOUT], taken[WITH], strict=True)]
    return f"throughput with the app, without = 1: {min(ratios):.2f} / {median(ratios):.2f} / {max(ratios):.2f}"


def worker(kind: str, name: str) -> subprocess.Popen[bytes]:
    """A worker with four slots, and a group of its own."""
    command = [sys.executable, "-m", "celery", "-A", "benchmarks.lease_app", "worker", "-c", "4", "-l", "ERROR"]
    command += ["-n", f"{name}@bench", "--without-gossip", "--without-mingle", "--without-heartbeat"]
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    environment = {**os.environ, "TASKLOCK_BENCH_KIND": kind}
    return subprocess.Popen(command, env=environment, start_new_session=True, **silent)  # type: ignore[call-overload,no-any-return]


@contextmanager
def running(kind: str, number: int, wait_for_it: bool = True) -> Iterator[None]:
    """Workers, killed afterwards."""
    started = [worker(kind, f"w{one}") for one in range(number)]
    try:
        if wait_for_it:
            from benchmarks.lease_app import app

            wait(lambda: len(app.control.ping(timeout=0.5)) == number)
        yield
    finally:
        for one in started:
            os.killpg(one.pid, signal.SIGKILL)
            one.wait()


def events(bench: Any, kind: str = "") -> list[str]:
    """What the bodies noted."""
    found = [one.decode() for one in bench.app.backend.client.lrange(bench.EVENTS, 0, -1)]
    return [one for one in found if one.startswith(kind)]


def wait(condition: Callable[[], object], seconds: float = 60) -> None:
    """Until it is true."""
    ends = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > ends:
            raise SystemExit("not so in time")
        time.sleep(0.02)


if __name__ == "__main__":
    sys.exit(main())
