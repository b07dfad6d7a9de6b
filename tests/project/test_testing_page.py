"""docs/testing.md: its app and its tests, run as a reader would; and every promise of the README among them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.support.kit_project import SETTINGS, blocks, run_pytest, write

ROOT = Path(__file__).parents[2]
FILES = blocks(ROOT / "docs" / "testing.md")

PROMISES = {
    "At most one holder per name": "test_at_most_one_holds_it",
    "No stale write accepted": "test_no_stale_write_is_accepted",
    "A dead holder's lock is free": "test_a_dead_holders_lock_is_free_within_its_lease",
    "A dead worker's messages": "test_a_dead_workers_message_starts_again",
    "`lock.fence` grows": "test_the_fence_grows_after_a_flush_too",
    "The holder learns that a lock is lost": "test_the_holder_learns_that_it_lost_its_lock",
    "A body that runs without a lock": "test_a_body_without_its_lock_can_detect_it",
    "Waiters are served in order": "test_waiters_are_served_in_order",
    "In any window at most the limit": "test_no_window_has_more_than_the_limit",
    "At most N members": "test_never_more_than_n_at_once",
}
"""What the README promises, by the beginning of its row, and the test on the page that a user would write of it."""


def promised() -> list[str]:
    readme = (ROOT / "README.md").read_text("utf-8")
    table = re.search(r"^\| promised \| not promised \|\n\| --- \| --- \|\n((?:\|.*\n)+)", readme, re.MULTILINE)
    assert table, "the README has no table of what is promised"
    return [row.split("|")[1].strip() for row in table[1].splitlines()]


def test_every_promise_of_the_readme_and_no_other_has_a_test_there() -> None:
    missing = [row for row in promised() if not row.startswith(tuple(PROMISES))]
    assert missing == []
    assert [begin for begin in PROMISES if not any(row.startswith(begin) for row in promised())] == []
    functions = {
        node.name: node for node in ast.parse(FILES["shop/test_promises.py"]).body if isinstance(node, ast.FunctionDef)
    }
    assert list(functions) == list(PROMISES.values())
    for name, node in functions.items():
        assert len(node.body) <= 3, f"{name} takes more than three statements"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("reader")
    write(directory, {"settings.py": SETTINGS, **FILES})
    return directory


def test_every_block_of_the_page_is_a_file_of_the_project() -> None:
    page = (ROOT / "docs" / "testing.md").read_text("utf-8")
    assert page.count("```python") == len(FILES)


def test_the_page_is_true(project: Path) -> None:
    said = run_pytest(project, "-W", "error", "--deselect", "shop/test_store.py")
    assert re.search(r"\d+ passed", said)
    passed = int(re.search(r"(\d+) passed", said)[1])
    assert passed == len(PROMISES) + 3


def test_the_contract_of_stores_is_one_that_others_can_test_by(project: Path) -> None:
    """A backend that loses a lock's fence, a permit's, or the time of a slot, is found out."""
    broken = FILES["shop/test_store.py"].replace("return MemoryBackend(", "return Broken(") + BROKEN
    write(project, {"broken/test_broken.py": broken})
    wanted = "free_lock_is_granted", "limit_are_granted_and_no_more and sync", "limit_go_at_once and sync"
    said = run_pytest(project, "-q", "broken", "-k", " or ".join(wanted), code=1)
    assert "test_a_free_lock_is_granted_for_the_ttl_that_was_asked_for" in said
    assert "where 0 = Grant(fence=0" in said  # pytest shows what was compared: asserts in there are rewritten
    assert "test_as_many_as_the_limit_are_granted_and_no_more" in said
    assert "assert 1 == 3" in said
    assert "test_as_many_as_the_limit_go_at_once_and_the_next_after_the_window" in said
    assert "AssertionError: (0, 0)" in said


BROKEN = """

def spoiled(verb, **wrong):
    def other(self, *args, **options):
        answer = verb(self, *args, **options)
        return answer._replace(**wrong) if set(wrong) <= set(getattr(answer, "_fields", ())) else answer

    return other


def spoil(part, verb, **wrong):
    kind = type(part)
    part.__class__ = type(kind.__name__, (kind,), {verb: spoiled(getattr(kind, verb), **wrong)})


class Broken(MemoryBackend):
    acquire = spoiled(MemoryBackend.acquire, fence=0)

    def __init__(self, settings):
        super().__init__(settings)
        spoil(self.permits, "acquire", fence=1)
        spoil(self.rates, "reserve", time=0)
"""
