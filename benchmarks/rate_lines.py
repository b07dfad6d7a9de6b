"""``python -m benchmarks.rate_lines``: many that wait at one limit: what a grant costs, and in which order they go.

Threads of four processes arrive within 0.8 s: 200 at 50 a second, 1,200 at 200 a second. Beside ``RateLimiter`` a plain
reservation queue, which tells each caller its time and lets it go whenever it comes, so that it is not exact. The share
of the quota is how many have gone, a margin after a limit of L in a window and a margin would have let the last one go.
"""

from __future__ import annotations

import argparse
import time
from statistics import median
from typing import Any

import redis

from benchmarks.project import configure
from benchmarks.rate_checks import PLAIN
from benchmarks.rate_peers import Limited, Ours
from benchmarks.rates import correlation, most_within, together, waiters
from benchmarks.report import Table
from benchmarks.server import Server, running_server

PROCESSES, WINDOW, MARGIN = 4, 1.0, 0.05


class PlainQueue(Limited):
    """A place is a time, and whoever is late for it goes late."""

    label = "plain reservation queue"

    def __init__(self, url: str, key: str, limit: int, window: float) -> None:
        super().__init__(url, key, limit, window)
        self.redis: Any = redis.Redis.from_url(url)
        self.sha = self.redis.script_load(PLAIN)

    def acquire(self) -> None:
        """Sleep once."""
        window = round((self.window + MARGIN) * 1e6)
        _, wait = self.redis.evalsha(self.sha, 1, self.key, self.limit, window, 3_600_000_000)
        time.sleep(max(0, wait) / 1e6)


def measure(server: Server, kind: type[Limited], number: int, limit: int) -> dict[str, float]:
    """One round."""
    client: Any = redis.Redis.from_url(server.url)
    client.flushall()
    asked: list[int] = []

    def count() -> None:
        asked.append(client.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"])

    made = together(
        waiters, PROCESSES, kind, (server.url, "line", limit, WINDOW), number // PROCESSES,
        seconds=120, between=count,
    )  # fmt: skip
    client.close()
    calls = sorted(called for _, called in made)
    left = number - limit
    needed = (left // limit) * (WINDOW + MARGIN) if left % limit == 0 else -(-left // limit) * (WINDOW + MARGIN)
    first = sorted(arrived for arrived, _ in made)
    ideal = first[limit - 1] + needed - first[0]
    return {
        "trips": (asked[1] - asked[0]) / len(made),
        "rank": correlation([(arrived, called) for arrived, called in made]),
        "quota": sum(at <= first[0] + ideal + MARGIN for at in calls) / number,
        "worst": most_within(calls, WINDOW),
        "seconds": calls[-1] - first[0],
        "served": len(made) / number,
    }


def main() -> int:
    """Measure and print; 1 if a window of ours has more than the limit."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rate_lines", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", type=int, help="so many that wait")
    options = parser.parse_args()
    over = 0
    table = Table(
        "Many that wait, medians (worst)",
        ["", "waiters", "trips a grant", "rank correlation", "share of the quota", "worst window", "served", "[s]"],
    )
    with running_server() as server:
        configure(server.url)
        for number, limit in ((200, 50), (1200, 200)):
            if options.only and options.only != number:
                continue
            found: dict[str, list[dict[str, float]]] = {Ours.label: [], PlainQueue.label: []}
            for turn in range(options.rounds):
                for kind in (Ours, PlainQueue):
                    table.progress(f"{number} wait, round {turn + 1}: {kind.label}")
                    found[kind.label].append(measure(server, kind, number, limit))
            for label, rounds in found.items():
                middle = {key: median(one[key] for one in rounds) for key in rounds[0]}
                worst = max(one["worst"] for one in rounds)
                over += label == Ours.label and worst > limit
                table.add(
                    label, str(number),
                    f"{middle['trips']:.2f} ({max(one['trips'] for one in rounds):.2f})",
                    f"{middle['rank']:.3f} ({min(one['rank'] for one in rounds):.3f})",
                    f"{middle['quota']:.3f} ({min(one['quota'] for one in rounds):.3f})",
                    f"{middle['worst']:.0f} of {limit} ({worst:.0f})",
                    f"{min(one['served'] for one in rounds):.2f}",
                    f"{middle['seconds']:.1f}",
                )  # fmt: skip
    print(table)
    return 1 if over else 0


if __name__ == "__main__":
    raise SystemExit(main())
