"""``python -m benchmarks [pairs|handoff|contended|burst|quorum|waiters|all]``: run from the project's root."""

from __future__ import annotations

import argparse
import json
import platform
import sys
from importlib.metadata import version
from pathlib import Path

from benchmarks import burst, contended, handoff, pairs, quorum, waiters
from benchmarks.plots import draw
from benchmarks.project import adapters, configure
from benchmarks.report import Table
from benchmarks.server import Control, running_server

WHAT = ("pairs", "handoff", "contended")


def main() -> int:
    """Measure, print the tables; 1 if a measurement failed or an update was lost."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("what", nargs="?", default="all", choices=[*WHAT, "burst", "quorum", "waiters", "all"])
    parser.add_argument("--rounds", type=int, default=7, help="interleaved rounds in random order (default: 7)")
    parser.add_argument("--seconds", type=float, default=0.5, help="an adapter's share of one round (default: 0.5)")
    parser.add_argument("--only", action="append", default=[], metavar="TEXT", help="adapters whose label contains it")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every round's numbers there")
    parser.add_argument("--plots", type=Path, metavar="DIRECTORY", help="draw the ratios of a whole run there, as SVG")
    options = parser.parse_args()
    if options.plots and (options.what != "all" or options.only):
        parser.error("--plots needs a whole run")
    wanted = WHAT if options.what == "all" else (options.what,)

    with running_server() as server:
        configure(server.url)
        kinds, versions = adapters(options.only)
        control = Control(server.port)
        control.close()
        print(_conditions(control.version, options.rounds, versions))
        tables: list[Table] = []
        if "quorum" in wanted:
            tables.append(quorum.measure(rounds=options.rounds, seconds=options.seconds))
            print(f"\n{tables[-1]}", flush=True)
        if "waiters" in wanted:
            tables.append(waiters.measure(server, rounds=options.rounds))
            print(f"\n{tables[-1]}", flush=True)
        if "burst" in wanted:
            tables.append(burst.measure(server, rounds=options.rounds))
            print(f"\n{tables[-1]}", flush=True)
        if "pairs" in wanted:
            tables.append(pairs.measure(server, kinds, rounds=options.rounds, seconds=options.seconds))
            print(f"\n{tables[-1]}", flush=True)
        if "handoff" in wanted:
            tables.append(handoff.measure(server, kinds, rounds=options.rounds))
            print(f"\n{tables[-1]}", flush=True)
        if "contended" in wanted:
            for table in contended.measure(server, kinds, rounds=options.rounds, seconds=options.seconds * 2):
                tables.append(table)
                print(f"\n{table}", flush=True)
    if options.plots:
        draw({table.title: table.data for table in tables}, options.plots)
    if options.json:
        options.json.write_text(json.dumps({table.title: table.data for table in tables}, indent=1), encoding="utf-8")
    lost = any(row.get("lost") for table in tables for row in table.data.values())
    return 1 if lost or any(table.failed for table in tables) else 0


def _conditions(redis_version: str, rounds: int, versions: dict[str, str]) -> str:
    try:
        parser = f"hiredis {version('hiredis')}"
    except ImportError:
        parser = "without hiredis"
    packages = ", ".join(f"{name} {number}" for name, number in versions.items())
    return (
        f"Python {platform.python_version()}, Redis {redis_version}, {parser}; {packages}.\n"
        f"{rounds} interleaved rounds in random order; a / b / c is min / median / max over rounds. "
        "Compare the ratios; what is in brackets depends on the machine."
    )


if __name__ == "__main__":
    sys.exit(main())
