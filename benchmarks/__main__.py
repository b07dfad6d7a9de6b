"""``python -m benchmarks [QUESTION ...]``: from the root of the project, on Linux. README.md says what is measured.

Prints one table for each question; exits with 1 if a measurement failed, or if something of ours was not exact.
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.project import DATABASE, URL, configure
from benchmarks.server import running_server

QUESTIONS = ("locks", "busy", "tasks", "limits", "pages")
PACKAGES = ("Django", "celery", "redis", "hiredis", "python-redis-lock", "sherlock", "huey", "celery-once",
            "celery-singleton", "limits", "pyrate-limiter", "throttled-py", "django-ratelimit")  # fmt: skip


def main() -> int:
    """Measure, print, and draw."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("questions", nargs="*", metavar="QUESTION", help=f"{', '.join(QUESTIONS)} (default: all)")
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds in random order (default: 3)")
    parser.add_argument("--only", action="append", default=[], metavar="TEXT", help="what has this in its label")
    parser.add_argument("--plots", type=Path, metavar="DIRECTORY", help="draw the ratios there, as SVG")
    options = parser.parse_args()
    if unknown := sorted({*options.questions} - {*QUESTIONS}):
        parser.error(f"unknown: {', '.join(unknown)}. The questions are {', '.join(QUESTIONS)}")
    failed = False
    with tempfile.TemporaryDirectory() as folder, running_server() as server:
        os.environ[URL], os.environ[DATABASE] = server.url, str(Path(folder) / "db.sqlite3")
        configure()
        print(f"Python {platform.python_version()}; {', '.join(map(_version, PACKAGES))}.")
        print(
            f"{options.rounds} rounds; a / b / c is lowest / median / highest. Compare ratios, not what is in brackets."
        )
        for question in options.questions or QUESTIONS:
            measure = import_module(f"benchmarks.{question}").measure
            table = measure(server, rounds=options.rounds, only=options.only)
            print(f"\n{table}", flush=True)
            failed |= bool(table.failed)
            if options.plots:
                table.draw(options.plots)
    return int(failed)


def _version(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return f"no {package}"


if __name__ == "__main__":
    raise SystemExit(main())
