"""Rows that are spread over several tables, and guards that ask other tables: one UPDATE has to judge."""

from __future__ import annotations

import pytest
from django.db import connection
from django.db.models import Exists, F, OuterRef, Q

from django_tasklock import StaleClaim, StateGuard, TaskLockError
from django_tasklock.guards.guard import revoke_claim
from django_tasklock.signals import claim_stale
from tests.support.guards import GUARD, heard, in_threads, take
from tests.support.twins import thread_of
from tests.testapp.models import Channel, Clip, Feature, PlainFeature, Sequel, Work

pytestmark = [pytest.mark.database, pytest.mark.django_db(transaction=True), pytest.mark.tasklock("memory")]

both = pytest.mark.parametrize("model", [Feature, PlainFeature])


def says(row):
    return type(row).objects.values_list("status", "progress", "title").get(pk=row.pk)


class TestParents:
    """Multi-table inheritance: Django writes a parent's column in a second statement, by the key alone."""

    @both
    def test_columns_of_both_tables_are_written(self, model):
        row, other = model.objects.create(), model.objects.create()
        claim = take(row)
        claim.update(title="Alien", progress=40)
        claim.update(title="Aliens")
        claim.update(views=F("views") + 1)
        claim.finish()
        assert says(row) == ("ready", 40, "Aliens")
        assert says(other) == ("uploading", 0, "untitled")
        assert list(Work.objects.order_by("pk").values_list("views", flat=True)) == [1, 0]

    def test_a_stale_one_writes_neither(self):
        row = Feature.objects.create()
        stale, fresh = take(row), take(row)
        with heard(claim_stale) as told, pytest.raises(StaleClaim):
            stale.update(title="stale", progress=99)
        assert [one["attempted"] for one in told] == [("title", "progress")]
        assert says(row) == ("processing", 0, "untitled")
        fresh.update(title="fresh")

    @both
    def test_one_that_is_overtaken_between_its_look_and_its_write(self, model):
        """Whoever takes the row over waits until both are written, or comes first and nothing is."""
        row = model.objects.create()
        claim = take(row)
        seen, others = [], []

        def take_over():
            take(row).update(progress=50)
            seen.append(says(row)[2])

        def between(execute, sql, params, many, context):
            result = execute(sql, params, many, context)
            if not others and sql.startswith(("SELECT", "UPDATE")):
                others.append(thread_of(take_over))
                others[0].start()
                others[0].join(0.3)  # a take-over that does not wait is done by now
            return result

        with connection.execute_wrapper(between):
            claim.update(title="first")
        others[0].join(60)
        assert seen == ["first"], "it waited"
        assert says(row) == ("processing", 50, "first")


class TestRefusedAtFirstUse:
    """What the checks say too, but a worker runs no checks."""

    def test_a_state_that_there_is_not_or_only_in_the_parents_table(self):
        row = Sequel.objects.create()
        with pytest.raises(TaskLockError, match="testapp.Sequel.status is no column of its own table"):
            take(row)
        with pytest.raises(TaskLockError, match=r"testapp\.Sequel\.status"):
            revoke_claim(Sequel, row.pk, GUARD, "x", "failed", "forced")
        take(Feature.objects.get(pk=row.pk)).finish()
        with pytest.raises(TaskLockError, match="names 'stage', which is no field of it"):
            take(row, StateGuard(field="stage", claim_from=["a"], claim_as="b"))

    def test_an_exclusion_over_a_join(self):
        """On PostgreSQL two such claims both succeed: the subquery is not evaluated again for who waited."""
        clip = Clip.objects.create(channel=Channel.objects.create())
        guard = StateGuard(claim_from=["uploading"], claim_as="processing", exclude=Q(channel__blocked=True))
        with pytest.raises(TaskLockError, match=r"testapp.Clip excludes by a joined table.*Exists"):
            take(clip, guard)
        clip.refresh_from_db()
        assert (clip.status, clip.lock_epoch) == ("uploading", 0)

    def test_written_as_exists_it_is_claimed_once(self):
        """Two that came at once: the second waits for the first, and is judged by what that left."""
        clip = Clip.objects.create(channel=Channel.objects.create())
        blocked = Exists(Channel.objects.filter(pk=OuterRef("channel_id"), blocked=True))
        guard = StateGuard(claim_from=["uploading"], claim_as="processing", exclude=blocked)

        def claims() -> bool:
            try:
                take(clip, guard)
            except TaskLockError:
                return False
            return True

        assert sorted(in_threads(4, claims)) == [False] * 3 + [True]
