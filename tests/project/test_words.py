"""Words that were retired stay so: two words for one thing are a dialect that whoever comes next must learn."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXTS = {
    path.relative_to(ROOT): path.read_text("utf-8")
    for pattern in ("django_tasklock/**/*.py", "docs/*.md", "README*.md", "CONTRIBUTING.md", "example_project/**/*.py")
    for path in sorted(ROOT.glob(pattern))
}

RETIRED = {
    r"\bHold\b(?!er)|\bHolds\(|holds_here": "Lease, Leases, leases_here",
    r"\bLockBase\b|\block_base\b": "Acquirable",
    r"\bleave_line\b|\bticket_of\b": "order.leave, order.number_of",
    r"\bpostpone\(|\bAside\b": "defer, Parked",
    r"\bdescribe_task\b|\bhosted\(|\bkind_for\b": "Host",
    r"register_at_fork\(after_in_child=_(?!after)": "AFTER_FORK",
    r"LockState\.UNENDING|\"unending\"|Query\(\"lapsed\"": "no_expiry, orphaned",
    r"--watch|tasklock\.W005|ledger_counter": "removed",
}


@pytest.mark.parametrize("word", RETIRED, ids=RETIRED.get)
def test_is_gone(word: str) -> None:
    found = [str(path) for path, text in TEXTS.items() if re.search(word, text)]
    assert found == [], f"{word} is retired: {RETIRED[word]}"


def test_all_of_it_is_read() -> None:
    """A folder that moved must not leave nothing to look at."""
    assert len(TEXTS) > 200
