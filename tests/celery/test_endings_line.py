"""Whoever waits in line is next, however the one before has ended, and however its own wait ends.

Without the workers' look for what was left behind: it is the end itself that promotes.
"""

from __future__ import annotations

import pytest

from django_tasklock.celery import parked_messages
from tests.support.endings import LEASE, PROMPT, revoke

pytest_plugins = ["tests.support.celery_site.fixtures"]
SITE_TASKS = ["tests.support.celery_site.ending_tasks"]

KINDS = ("once_line", "locked_line")


class Line:
    """One task of a kind that runs and two that are parked behind it, in a worker of their own.

    A pool of which several children were killed may stand still for a while.
    """

    def __init__(self, site, kind, how="sits", first=()):
        self.site, self.key = site, kind
        self.worker = site.worker(concurrency=3, queues=(kind,))  # one that is dead is replaced within a second
        here = {"queue": site.queue(kind)}
        self.gate = site.gate()
        self.first = site.publish(kind, self.key, how, self.gate, options={**here, **dict(first)})
        self.start = site.started(self.key)
        self.second = site.publish(kind, self.key, options=here)
        self.parked(1)
        self.third = site.publish(kind, self.key, options=here)
        self.parked(2)

    def parked(self, number):
        self.site.wait_until(lambda: len(parked_messages(f"line:{self.key}")) == number)

    def order(self):
        """Which of the three began, in order."""
        ids = [one.id for one in (self.first, self.second, self.third)]
        return [ids.index(one.task_id) for one in self.site.events("start", self.key)]

    def empties(self, seconds=PROMPT):
        """Nobody is left."""
        self.site.wait_until(lambda: not parked_messages(f"line:{self.key}"), seconds)
        self.site.wait_until(lambda: self.site.lock(f"line:{self.key}") is None, seconds)


@pytest.fixture
def lines(celery_site):
    """``lines(...)``: one of each kind."""
    celery_site.configure(lease=LEASE, tasks=("tests.support.celery_site.no_promoter",))
    return lambda *what, **how: [Line(celery_site, kind, *what, **how) for kind in KINDS]


def kill(site, one):
    one.worker.kill_one(one.start.pid)


def terminate(site, one):
    site.app.control.revoke(one.first.id, terminate=True, signal="KILL")


BEFORE = {
    # how the first ends: its body, its options, who ends it
    "returns": ("returns", {}, None),
    "raises": ("raises", {}, None),
    "ignores": ("ignores", {}, None),
    "rejects": ("rejects", {}, None),
    "hard time limit": ("deaf", {"time_limit": 5}, "itself"),
    "SIGKILL of the child": ("sits", {}, kill),
    "revoke, KILL": ("sits", {}, terminate),
    "exits": ("exits", {}, None),
}


@pytest.mark.broker
@pytest.mark.parametrize("ended", BEFORE)
def test_the_next_begins_when_the_first_has_ended(celery_site, lines, ended):
    how, options, by = BEFORE[ended]
    ran = lines(how, first=options)
    for one in ran:
        if by is None:
            one.gate.open()
        elif callable(by):
            by(celery_site, one)
    for one in ran:
        assert celery_site.outcome(one.second, PROMPT) == ("SUCCESS", "returns")
        assert celery_site.outcome(one.third, PROMPT) == ("SUCCESS", "returns")
        one.empties()
        assert one.order() == [0, 1, 2]


@pytest.mark.broker
def test_the_next_goes_first_while_the_first_is_to_come_back(celery_site, lines):
    for one in lines("retries 1"):
        one.gate.open()
        for result in (one.first, one.second, one.third):
            assert celery_site.outcome(result)[0] == "SUCCESS"
        one.empties()
        order = one.order()
        assert order[:2] == [0, 1]
        assert sorted(order[2:]) == [0, 2], (
            "a retry has its first number: it goes before the third if it is back by then"
        )


@pytest.mark.broker
@pytest.mark.quick
def test_a_message_that_is_revoked_while_parked_lets_the_next_one_run(celery_site, lines):
    ran = lines()
    for one in ran:
        revoke(celery_site, one.worker, one.second.id)
        one.gate.open()
    for one in ran:
        assert celery_site.outcome(one.third, PROMPT) == ("SUCCESS", "returns")
        assert celery_site.outcome(one.second)[0] == "REVOKED"
        one.empties()
        assert one.order() == [0, 2]
