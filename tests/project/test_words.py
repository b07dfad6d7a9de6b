"""Words that were retired stay so: two words for one thing are a dialect that whoever comes next must learn."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXTS = {
    path.relative_to(ROOT): path.read_text("utf-8")
    for pattern in (
        "django_tasklock/**/*.py",
        "docs/**/*.md",
        "README*.md",
        "CONTRIBUTING.md",
        "example_project/**/*.py",
    )
    for path in sorted(ROOT.glob(pattern))
}

RETIRED = {
    r"\bHold\b(?!er)|\bHolds\(|holds_here": "Lease, Owner, current_owner",
    r"\bLockBase\b|\block_base\b": "Acquirable",
    r"\bleave_line\b|\bticket_of\b": "order.leave, order.number_of",
    r"\bpostpone\(|\bAside\b": "defer, Parked",
    r"\bdescribe_task\b|\bhosted\(|\bkind_for\b": "Host",
    r"register_at_fork\(after_in_child=_(?!after)": "AFTER_FORK",
    r"LockState\.UNENDING|\"unending\"|Query\(\"lapsed\"": "no_expiry, orphaned",
    r"--watch|tasklock\.W005|ledger_counter": "removed",
    r"\bAsk\(|\bKept\.": "AcquireRequest, RenewalResult",
    r"\btold_(?:acquired|released|lost|conflict|forced|granted|refused)\b": "events",
    r"\.rest\(\)|\barest\b": "close_idle",
    r"\bErrands\b|\berrands\.|\bcatch_up\b": "Reconciler.release_later, acquire_later",
    r"\bRunning\(|\bDelivered\b|\bRedelivered\b|DeliveredInside|OnceRun": "Call, TaskCall, History, Line, NestedCall",
    r"\bameet\b|\bvouch\(|\blook_after\(": "resolve_duplicate, record_running, remove_row",
    r"\bforgo\b|\bbrought\(|may_park": "cancel_reservation, peek_reservation, takes_lock",
    r"\bCallKind\b|\bKeptLock\b|\bconflict_of\(": "CallStrategy, LockOverRetry, conflict_error",
    r"\blate_record\b|\bregistry\.taken\b|\bPutBack\b": "lazy_record, process_locks, RowRestorer",
    r"\bown_table\b|\breturns\.give\b": "table_options, background_work.submit",
    r"\bensure_standing\b|\bStandings?\b|\bstandings?\b": "ensure_enclosing_held, LimiterTerms, recent_error",
    r"\bfenced\(model|\bimport .*\bfenced?\b|fences? (?:a|its|the|no) row": "has_token_columns, revoke_claim",
    r"\b_?asked = (?:time\.)?monotonic|\basked: float|UNASKED|asked_by_keywords|\b_asked\b": "sent, pending",
    r"\bPlaces\b|\bplaces?_of\b": "Positions, QuorumKeys, number_of, database_of: a place is one in a queue",
    r"\bNotebook\b|\bput_back_to\b|marks\.leave\(|locks\.terms\b": "SweepLog, claimable_state, marks.write, parameters",
    r"\btexts import .*shown\b": "printable",
    r"_takes\b|leases_here|\btell_aside\b|\.bells\b|skip_struck": "Acquisitions, Owner, current_owner, listeners",
    r"\bwritten_for\b|\bsealed_for\b|\bpage_before\b|\btries_of\b": "is_header_for, predecessor_request",
    r"\bput_off\(|\btook_away\b|\bUnfit\b|\bStrays\b": "defer, free_dead_lock, UnusableMessage, UnusableLog",
    r"\bWakening\b|LimitTickets|LimiterBase|\bDesk\b|\bdoubtful\b": "Schedule, Booker, may_have_been_used",
    r"\ba?mine\(|release_noted|noted_?wait|\ba?note_wait|look_last": "get_held, require_lease, release_and_clear, ...",
    r"\.ticket\(|\.expects\(|\.flagged\(|\.bound\(|\.lines\b": "next_number, count_before, clear_flag, ...",
    r"\bDoor(?:Schema)?\(|\w+Door\b|LOOK_AND_ACT|refused_as|imported_later": "TaskLockView, READ_AND_POST, as_problem",
    r"\bLedger\b|\bSleepers\b|\bSighting\b|AgreedRates|\blonely\b|\baagree\b|\.bury\(|request\.claim\(": "RateBook",
    r"\bDeed\b|second_look|take_away\(|PutBackResult|\bCame\b|rest\.shapes|admin\.words|\bclaimants\b": "NewEntry",
}
DOORS = {"exceptions.py", "signals.py", "testing.py", "types.py"}
"""Modules of the root that are doors beside the packages: what they offer stands in ``__all__``."""
LIMITS = {
    path.relative_to(ROOT): path.read_text("utf-8")
    for folder in ("django_tasklock/rates", "django_tasklock/celery/rates", "tests/rates")
    for path in sorted((ROOT / folder).glob("**/*.py"))
}
SUBJECTS = re.compile(
    r"(The|An?|Whether|What|Who|Those|That|How|Which|All|Some|Of|By|Nobody|Everybody)\b|``\w+`` for coroutines"
)


@pytest.mark.parametrize("word", RETIRED, ids=RETIRED.get)
def test_is_gone(word: str) -> None:
    found = [str(path) for path, text in TEXTS.items() if re.search(word, text)]
    assert found == [], f"{word} is retired: {RETIRED[word]}"


def test_a_call_at_a_limit_has_a_reservation_and_no_place() -> None:
    found = [str(path) for path, text in LIMITS.items() if re.search(r"(?i)(?<![a-z])(?<!in )places?(?![a-z])", text)]
    assert found == []


def test_an_epoch_is_of_a_claimed_row_and_a_book_has_editions() -> None:
    found = [str(path) for path, text in LIMITS.items() if re.search(r"\bepoch\b(?!\")", text)]
    assert found == []


@pytest.mark.parametrize(
    "path", [path for path in TEXTS if path.suffix == ".py" and path.parts[0] == "django_tasklock"], ids=str
)
def test_a_function_s_docstring_says_what_it_does(path: Path) -> None:
    """PEP 257: a verb first. An attribute or a property is described, which ruff's D401 knows as well."""
    for node in ast.walk(ast.parse(TEXTS[path])):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        described = {ast.unparse(one) for one in node.decorator_list} & {"property", "cached_property"}
        text = ast.get_docstring(node) or ""
        assert described or not SUBJECTS.match(text), f"{node.name}: {text}"


def test_only_doors_say_what_they_offer() -> None:
    with_all = [path for path, text in TEXTS.items() if path.parts[0] == "django_tasklock" and "\n__all__" in text]
    assert [str(path) for path in with_all if path.name != "__init__.py" and path.name not in DOORS] == []


def test_all_of_it_is_read() -> None:
    """A folder that moved must not leave nothing to look at."""
    assert len(TEXTS) > 200
    assert len(LIMITS) > 15
