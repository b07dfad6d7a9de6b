"""One planted fault: what a careless change might do, and the tests that must not let it pass."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Fault(NamedTuple):
    """A text that stands once in a file, and what breaks a promise in its place."""

    file: str
    """Below ``django_tasklock/``."""
    what: str
    before: str
    after: str
    tests: str
    """Arguments of pytest. The fewest that see it, so that the command stays quick."""

    def planted(self, text: str) -> str:
        """Return the text of the file with the fault. Raises ``LookupError`` if there is no place for it."""
        if (times := text.count(self.before)) != 1:
            raise LookupError(f"{self.file}: {self.before!r} stands there {times} times. Adapt tests/mutants/rooms")
        return text.replace(self.before, self.after)

    def plant(self, package: Path) -> None:
        """Write it into a copy of the package."""
        path = package / self.file
        path.write_text(self.planted(path.read_text("utf-8")), "utf-8")
