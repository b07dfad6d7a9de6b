"""Eight processes, hundreds of rounds: never two grants of one round, and never none."""

from __future__ import annotations

import os

import pytest

from tests.support.competition import PROCESSES, Asked, Processes, contested, judge_log, judge_rounds
from tests.support.stores import clear, stores

ROUNDS = int(os.environ.get("TASKLOCK_TEST_ROUNDS", "400"))
TURNS = 25

shared = pytest.mark.parametrize("store", stores("redis", "database", "cache-django-redis"))


@pytest.fixture(scope="module")
def processes():
    with Processes() as started:
        yield started


@pytest.mark.slow
class TestRaces:
    @shared
    def test_one_process_is_granted_a_lock_that_nobody_had(self, processes, store):
        clear(store)
        asked, _ = processes.race(store, ROUNDS)
        assert len(asked) == ROUNDS * PROCESSES
        assert judge_rounds(asked, ROUNDS) == []
        assert contested(asked) > ROUNDS / 20, "that was no race"

    @pytest.mark.parametrize("store", stores("redis", "database"))
    def test_one_process_is_granted_a_lock_whose_holder_died(self, processes, store):
        clear(store)
        asked, dead = processes.race(store, ROUNDS, after_a_death=True)
        assert len(dead) == ROUNDS
        assert judge_rounds(asked, ROUNDS, dead) == []
        assert contested(asked) > ROUNDS / 20, "that was no race"

    @shared
    def test_one_process_at_a_time_has_the_lock_and_each_with_a_higher_fence(self, processes, store, tmp_path):
        clear(store)
        log = processes.take_turns(store, TURNS, tmp_path / "log")
        assert judge_log(log) == []
        assert len(log) == 2 * TURNS * PROCESSES

    def test_a_store_whose_add_is_not_atomic_is_found_out(self, processes):
        clear("cache-filebased")
        asked, _ = processes.race("cache-filebased", 100)
        assert any("2 grants" in finding for finding in judge_rounds(asked, 100))


GOOD = [Asked(0, 1, 10), Asked(0, 2, None), Asked(1, 3, 11), Asked(2, 1, 12)]


class TestJudges:
    def test_one_grant_a_round_is_right(self):
        assert judge_rounds(GOOD, 3) == []
        assert judge_rounds(GOOD, 3, {0: 9, 1: 10, 2: 11}) == []

    @pytest.mark.parametrize(
        ("asked", "finding"),
        [
            ([*GOOD, Asked(1, 4, 13)], "round 1: 2 grants, to [3, 4]"),
            (GOOD[:3], "round 2: 0 grants, to []"),
            ([*GOOD, Asked(7, 4, 13)], "round 7: there is no such round"),
        ],
    )
    def test_any_other_number_is_wrong(self, asked, finding):
        assert judge_rounds(asked, 3) == [finding]

    def test_a_fence_not_above_that_of_the_dead_holder_is_wrong(self):
        assert judge_rounds(GOOD, 3, {0: 9, 1: 11, 2: 11}) == ["round 1: fence 11 is not above 11"]

    def test_a_log_in_which_each_leaves_before_the_next_enters_is_right(self):
        assert judge_log(["enters 1 5", "leaves 1 5", "enters 2 6", "leaves 2 6"]) == []

    @pytest.mark.parametrize(
        ("lines", "finding"),
        [
            (["enters 1 5", "enters 2 6", "leaves 2 6"], "line 1: 2 enters while 1 is inside"),
            (["enters 1 5", "leaves 1 5", "enters 2 5", "leaves 2 5"], "line 2: fence 5 after 5"),
            (["enters 1 5", "leaves 2 5", "leaves 1 5"], "line 1: 2 leaves while ('1', 5) is inside"),
            (["enters 1 5"], "1 never left"),
        ],
    )
    def test_any_other_log_is_wrong(self, lines, finding):
        assert judge_log(lines) == [finding]

    def test_a_round_is_contested_if_another_asked_while_the_winner_did(self):
        won = Asked(0, 1, 10, 1.0, 2.0)
        assert contested([won, Asked(0, 2, None, 1.5, 2.5), Asked(0, 3, None, 3.0, 4.0)]) == 1
        assert contested([won, Asked(0, 2, None, 2.0, 2.5), Asked(1, 3, None, 1.0, 2.0)]) == 0
