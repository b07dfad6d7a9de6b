"""Counting: faults that must not pass."""

from tests.mutants.fault import Fault

FAULTS = [
    Fault(
        "counts.py",
        "an event is lost when the table cannot be written",
        "            self.put_back(sums)\n            if not",
        "            if not",
        "tests/counts/test_table.py -k cannot_be_written",
    ),
    Fault(
        "counts.py",
        "the table is set and not added to",
        "{one} = {table}.{one} + excluded.{one}",
        "{one} = excluded.{one}",
        "tests/counts/test_table.py -k many_at_once",
    ),
    Fault(
        "counts.py",
        "old hours are deleted and not added up",
        "        _add(connection, rows)\n\n",
        "\n",
        "tests/counts/test_table.py -k old_hours",
    ),
    Fault(
        "counts.py",
        "a forked child writes its parent's counts, too",
        "    _process.__init__()  # type: ignore[misc]\n",
        "    _process._thread = None\n",
        "tests/counts/test_table.py -k forked",
    ),
    Fault(
        "counts.py",
        "kinds without bound",
        "if len(self.kinds) >= MOST_KINDS:",
        "if len(self.kinds) > 10**9:",
        "tests/counts/test_counting.py -k two_hundred",
    ),
    Fault(
        "counts.py",
        "two processes that add up old hours at once do so twice",
        "        if deleted != len(ids):",
        "        if False:",
        "tests/counts/test_table.py -k two_that_add_up",
    ),
]
