"""Chains, groups and chords: no member that meets a busy lock leaves the others waiting.

Nor does a duplicate that is dropped: see ``test_redelivery``.
"""

from __future__ import annotations

import pytest
from celery import chain, chord, group

from django_tasklock.celery import parked_messages
from django_tasklock.celery.queue import operators
from tests.testapp.models import Video

pytest_plugins = ["tests.support.celery_site.fixtures"]
SITE_TASKS = ["tests.support.celery_site.canvas_tasks"]


class Members:
    """Members of one kind, and somebody who has their lock."""

    def __init__(self, site, kind, word):
        self.site, self.word = site, word
        self.key = f"{kind}-{word}"
        self.name = f"member:{self.key}"
        self.gate = site.gate()
        self.kind = kind
        self.holder = site.publish("once_member", self.key, until=self.gate)
        site.started(self.key)

    def member(self, number):
        if self.kind == "once":
            return self.site.task("once_member").once(on_conflict=self.word).si(self.key, number)
        return self.site.task(f"{self.word}_member").si(self.key, number)

    def other(self, number):
        return self.site.task("other").si(number)

    def chord(self, *header):
        return chord(header, self.site.task("gather").s()).apply_async()

    def put_aside(self):
        """Let the holder go, when those who come back have met it."""
        if self.word == "retry":
            self.site.wait_until(lambda: f"retry: lock '{self.name}'" in self.site.workers[0].log())
        if self.word in ("queue", "coalesce"):
            self.site.wait_until(lambda: parked_messages(self.name))
        self.gate.open()

    def nothing_left(self):
        self.gate.open()
        self.site.wait_until(lambda: not parked_messages(self.name) and self.site.lock(self.name) is None)


@pytest.fixture
def made(celery_site):
    """``made(word)``: members that do so when busy, of each kind."""
    celery_site.configure(lease=4)  # which is when ``retry`` comes again
    celery_site.worker(concurrency=8, prefetch=4)
    return lambda word: [Members(celery_site, kind, word) for kind in ("once", "decorated")]


@pytest.mark.broker
def test_a_chord_receives_the_result_of_a_skipped_member(celery_site, made):
    for one in [*made("skip"), *made("reject")]:
        result = one.chord(one.other(1), one.member(2), one.other(3))
        state, value = celery_site.outcome(result)
        assert state == "SUCCESS"
        reasons = [answer["reason"] if isinstance(answer, dict) else answer for answer in value]
        assert reasons == [1, "already_processing", 3]
        assert celery_site.lock(one.name) is not None
        one.nothing_left()


@pytest.mark.broker
@pytest.mark.quick
def test_a_chord_fails_with_its_member(celery_site, made):
    for one in made("raise"):
        result = one.chord(one.other(1), one.member(2), one.other(3))
        assert celery_site.outcome(result)[0] == "FAILURE"
        one.nothing_left()
    assert celery_site.events("start", "gathered") == []


@pytest.mark.broker
def test_a_chord_waits_for_members_that_run_later(celery_site, made):
    for number, word in enumerate(("wait", "retry", "queue", "coalesce"), 1):
        ran = [(one, one.chord(one.other(1), one.member(2), one.other(3))) for one in made(word)]
        for one, result in ran:
            one.put_aside()
            assert celery_site.outcome(result) == ("SUCCESS", [1, 2, 3])
            one.nothing_left()
        assert len(celery_site.events("start", "gathered")) == number * len(ran)


@pytest.mark.broker
def test_a_chord_ends_although_members_are_replaced(celery_site, made):
    for one in made("coalesce"):
        result = one.chord(*(one.member(number) for number in range(5)))
        one.put_aside()
        state, value = celery_site.outcome(result)
        assert state == "SUCCESS"
        assert len(value) == 5
        assert value[4] == 4
        assert {answer["reason"] for answer in value if isinstance(answer, dict)} <= {"coalesced"}
        one.nothing_left()


@pytest.mark.parametrize(("part", "row"), [("encodes", "ready"), ("fails", "failed")])
def test_a_row_goes_from_the_guard_of_one_task_to_that_of_another(celery_site, part, row):
    """As docs/guard.md has it: the row is closed by the end of the chord, which comes as soon as it likes."""
    celery_site.worker(concurrency=4)
    films = [Video.objects.create() for _ in range(3)]
    for film in films:
        celery_site.publish("cut_film", film.pk, part)
    for film in films:
        celery_site.wait_until(lambda film=film: Video.objects.get(pk=film.pk).status == row)
        assert len(celery_site.events("start", film.pk)) == (part == "encodes")


def test_a_chord_of_chains_ends_although_a_link_is_rejected(celery_site, made):
    for one in made("reject"):
        chains = [chain(one.member(1), one.other(2)), chain(one.other(3), one.other(4))]
        assert celery_site.outcome(one.chord(*chains))[0] in ("SUCCESS", "FAILURE")
        one.nothing_left()


def forms(one):
    """Chains that begin with the member, each with a further link of another form."""

    def gathered(*header):
        return chord([one.other(number) for number in header], one.site.task("gather").s())

    return [
        chain(one.member(1), one.other(2)),
        chain(one.member(1), group(one.other(2), one.other(3))),
        chain(one.member(1), gathered(2, 3)),
        chain(one.member(1), one.other(2), gathered(3), gathered(4, 5)),
        chain(one.member(1), chord([one.other(2)], chain(one.other(3), one.other(4)))),
        chain(one.member(1), chord([one.other(2)], group(one.other(3), one.other(4)))),
        chain(one.member(1), chord([one.other(2)], chord([one.other(3)], one.other(4)))),
    ]


def test_whoever_waits_for_what_follows_a_rejected_message_is_told(celery_site, made):
    """A chord goes on, as that member was skipped, however deep; a chain of its own ends with its first link."""
    one, _ = made("reject")
    for form in forms(one):
        assert celery_site.outcome(one.chord(one.other(0), form))[0] == "SUCCESS"
    for form in forms(one):
        result = form.apply_async()
        for end in getattr(result, "children", None) or [result]:
            assert celery_site.outcome(end)[0] == "REVOKED"
    assert len(celery_site.events("start", "gathered")) == 3 + len(forms(one))
    one.nothing_left()


@pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")  # by Celery's results
def test_whoever_waits_for_what_follows_a_discarded_message_is_told(celery_site, made):
    """One that was parked, and that an operator discards."""
    one, _ = made("queue")
    for form in forms(one):
        for whole in (chord([one.other(0), form], celery_site.task("gather").s()), form):
            result = whole.apply_async()
            [parked] = celery_site.wait_until(lambda: parked_messages(one.name))
            assert operators.discard(parked.task_id, "nobody wants it")[1] == ""
            for end in getattr(result, "children", None) or [result]:
                assert celery_site.outcome(end)[0] in ("FAILURE", "REVOKED")
    one.nothing_left()


def test_groups_and_chains_end(celery_site, made):
    for one in [*made("skip"), *made("queue"), *made("coalesce")]:
        together = group([one.other(1), one.member(2)]).apply_async()
        last = chain(one.other(1), one.member(2), one.other(3)).apply_async()
        one.put_aside()
        celery_site.wait_until(together.ready)
        assert together.successful()
        assert celery_site.outcome(last) == ("SUCCESS", 3)
        one.nothing_left()
