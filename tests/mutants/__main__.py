"""``python -m tests.mutants [ROOM ...]``: plant each fault of the rooms in a copy, and run the tests that must see it.

Prints what became of each; exits with 1 if a fault was not seen, or if its tests are red without it. To add one, see
``tests/mutants/rooms``.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from tests.mutants import FAULTS, Fault

ROOT = Path(__file__).parents[2]
NEEDED = ("django_tasklock", "tests", "example_project", "benchmarks", "docs", "setup.cfg", "pyproject.toml")
HUNG = 300  # seconds: what a fault lets hang is red, too


def main() -> int:
    """Plant the faults of these rooms, by default of all."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=(__doc__ or "").split("\n\n")[1])
    parser.add_argument("rooms", nargs="*", help=f"{', '.join(FAULTS)} (default: all)")
    rooms = parser.parse_args().rooms or FAULTS
    if unknown := sorted(set(rooms) - set(FAULTS)):
        parser.error(f"no faults of {', '.join(unknown)}: choose among {', '.join(FAULTS)}")
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in NEEDED:
            take = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            take(ROOT / name, copy / name)
        for file in ROOT.glob("*.md"):
            shutil.copy(file, copy)
        seen = [tell(room, fault, copy) for room in rooms for fault in FAULTS[room]]
    print(f"{sum(seen)} of {len(seen)} faults were seen")
    return 0 if all(seen) else 1


def tell(room: str, fault: Fault, copy: Path) -> bool:
    """Plant one fault, print what the tests say, and take it out again. Return whether they saw it."""
    path = copy / "django_tasklock" / fault.file
    without = path.read_text("utf-8")
    usable = passes(copy, fault.tests)
    fault.plant(copy / "django_tasklock")
    seen = usable and not run(copy, fault.tests)
    path.write_text(without, "utf-8")
    said = "seen" if seen else "NOT SEEN" if usable else "RED WITHOUT IT"
    print(f"{said:<14}  {room}: {fault.what}  [{fault.tests}]", flush=True)
    return seen


@cache
def passes(copy: Path, tests: str) -> bool:
    """Whether these tests are green without a fault."""
    return run(copy, tests)


def run(copy: Path, tests: str) -> bool:
    """Run tests of the copy up to the first that is red. Return whether all are green."""
    command = [sys.executable, "-m", "pytest", "-n0", "-x", "-q", "-p", "no:cacheprovider", *shlex.split(tests)]
    try:
        return subprocess.run(command, cwd=copy, capture_output=True, timeout=HUNG).returncode == 0
    except subprocess.TimeoutExpired:
        return False


if __name__ == "__main__":
    raise SystemExit(main())
