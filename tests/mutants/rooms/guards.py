"""Claims and guarded rows: faults that must not pass."""

from tests.mutants.fault import Fault

FAULTS = [
    Fault(
        "guards/claim.py",
        "a write that does not ask for the token and the epoch",
        "            return rows.filter(**token, **{EPOCH: self.epoch})",
        "            return rows",
        "tests/guards/test_stale_writer.py",
    ),
    Fault(
        "guards/claim.py",
        "the epoch is not compared",
        "            return rows.filter(**token, **{EPOCH: self.epoch})",
        "            return rows.filter(**token)",
        "tests/guards",
    ),
    Fault(
        "guards/claim.py",
        "a fenced transaction that does not lock its row",
        "            row = locked(self.rows()).first()",
        "            row = self.rows().first()",
        "tests/guards",
    ),
    Fault(
        "guards/claim.py",
        "an answer to the claim that was lost counts as a refusal",
        "        if found is not None and not claimed and again and self._sent:",
        "        if False:",
        "tests/guards",
    ),
    Fault(
        "guards/writes.py",
        "a parent's table is written although the row was not",
        "        if written and above:",
        "        if above:",
        "tests/guards",
    ),
]
