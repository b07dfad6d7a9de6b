"""``python -m tests.faults [--seconds N] [--seed N] [--only WAY]``: the same bad days for three kinds of locks.

Four workers process rows, each once, while they are killed and stopped, their clocks are set, Redis is flushed,
restarted, cut off and silent and, where ``TASKLOCK_TEST_DATABASE`` names a PostgreSQL, the database drops connections.
Prints a table; exits with 1 if django_tasklock has broken a promise.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from typing import TYPE_CHECKING

import redis

from tests.faults import site
from tests.support.proxy import Proxy
from tests.support.redis_server import RedisServer

if TYPE_CHECKING:
    from tests.faults.judge import Verdict

ROWS = 3000
"""More than can be processed."""
HEADS = (
    "rows done", "done twice", "stale writes accepted", "updates lost", "holders refused", "foreign releases",
    "locks left", "stale sessions stopped",
)  # fmt: skip


def main() -> int:
    """Run each way, and print what came of it."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--seconds", type=float, default=30, help="of harm, for each way (default: 30)")
    parser.add_argument("--seed", type=int, default=random.randrange(10_000), help="of what happens (default: any)")
    parser.add_argument("--only", action="append", default=[], help="one way, by its name; may be repeated")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, RedisServer() as server, Proxy(server.url) as proxy:
        os.environ |= {site.FOLDER: folder, site.STORE: proxy.url}
        site.set_up()
        from django.db import connection

        from tests.faults.judge import keep_ledger
        from tests.faults.locks import WAYS

        connection.creation.create_test_db(verbosity=0, autoclobber=True)
        try:
            keep_ledger()
            verdicts: dict[str, Verdict] = {}
            for way in options.only or WAYS:
                verdicts[way] = run(way, options.seed, options.seconds, server, proxy)
        finally:
            connection.creation.destroy_test_db(connection.settings_dict["NAME"], verbosity=0)
    print(f"\n{connection.vendor}, seed {options.seed}, {options.seconds:g} s each\n")
    print("| | " + " | ".join(HEADS) + " |\n|---|" + "---:|" * len(HEADS))
    for way, verdict in verdicts.items():
        print(f"| {way} | " + " | ".join(map(str, verdict)) + " |")
    mine = verdicts.get("django_tasklock")
    return 1 if mine is not None and (mine.broken or not mine.done) else 0


def run(way: str, seed: int, seconds: float, server: RedisServer, proxy: Proxy) -> Verdict:
    """Let the workers of one way live through it."""
    from tests.faults.harm import Harm
    from tests.faults.judge import clear, judge
    from tests.faults.worker import JOURNAL, OVER

    for name in (JOURNAL, OVER):
        (site.folder() / name).unlink(missing_ok=True)
    (site.folder() / JOURNAL).touch()
    clear(ROWS)
    harm = Harm(way, seed, server, proxy)
    harm.rage(seconds)
    (site.folder() / OVER).touch()
    harm.calm()
    left = locks_left(server)
    print(f"{way}: " + ", ".join(f"{number} x {what}" for what, number in sorted(harm.done.items())))
    return judge(site.folder() / JOURNAL, left)


def locks_left(server: RedisServer) -> int:
    """How many locks are left two leases after the end."""
    from tests.faults.locks import LEASE

    ends = time.monotonic() + 2 * LEASE
    with redis.Redis.from_url(server.url) as client:
        while found := sum(1 for _ in client.scan_iter("*fault:*")):
            if time.monotonic() > ends:
                break
            time.sleep(0.1)
    return found


if __name__ == "__main__":
    raise SystemExit(main())
