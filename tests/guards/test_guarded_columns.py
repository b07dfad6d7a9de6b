"""The token and the epoch in a row: what Django itself writes beside the claim does not set them back."""

from __future__ import annotations

import pytest
from django.core import serializers
from django.db import connection
from django.db.migrations.autodetector import MigrationAutodetector
from django.db.migrations.state import ModelState, ProjectState
from django.db.models import F
from django.db.transaction import atomic
from django.utils.module_loading import import_string

from django_tasklock import Claim, StaleClaim, TaskLockError
from tests.support.guards import AGAIN, new_token
from tests.testapp.models import Video

pytestmark = [pytest.mark.database, pytest.mark.django_db]


def take(video):
    return Claim.take(Video, video.pk, AGAIN, new_token())


def columns(video):
    """What the database says."""
    return Video.objects.values_list("lock_token", "lock_epoch", "progress").get(pk=video.pk)


def as_in_a_migration(field):
    """The field as a migration file has it."""
    _, path, args, kwargs = field.deconstruct()
    return import_string(path)(*args, **kwargs)


def historical():
    """The model as a data migration gets it: of the state that migration files describe."""
    fields = [(field.name, as_in_a_migration(field)) for field in Video._meta.local_fields]
    state = ProjectState()
    state.add_model(ModelState("testapp", "Video", fields, {"db_table": Video._meta.db_table}))
    return state.apps.get_model("testapp", "Video")


class TestHistoricalModels:
    def test_save_in_a_data_migration_leaves_them(self):
        video = Video.objects.create()
        stale = take(video)
        old = historical().objects.get(pk=video.pk)
        fresh = take(video)
        old.progress = 7
        old.save()
        assert columns(video) == (fresh.token, 2, 7)
        with pytest.raises(StaleClaim):
            stale.update(progress=1)
        fresh.update(progress=8)

    def test_no_new_migration_is_wanted(self):
        fields = [(field.name, as_in_a_migration(field)) for field in Video._meta.local_fields]
        before, after = ProjectState(), ProjectState()
        before.add_model(ModelState("testapp", "Video", fields))
        after.add_model(ModelState("testapp", "Video", [(f.name, f.clone()) for f in Video._meta.local_fields]))
        for state in (before, after):
            assert state.apps
        assert MigrationAutodetector(before, after)._detect_changes() == {}


class TestFixtures:
    @pytest.mark.parametrize("deleted", [False, True])
    def test_a_fixture_writes_all_but_them_and_one_of_a_deleted_row_revokes_the_earlier_claim(self, deleted):
        video = Video.objects.create(progress=3)
        stale = take(video)
        dumped = serializers.serialize("json", Video.objects.all())
        token = ""  # restored, and not claimed by anybody
        if deleted:
            Video.objects.all().delete()
        else:
            token = take(video).token
        for loaded in serializers.deserialize("json", dumped):
            loaded.save()
        assert columns(video) == (token, 2, 3)
        with pytest.raises(StaleClaim):
            stale.update(progress=1)


class TestCopies:
    @pytest.mark.parametrize("adding", [True, False])
    def test_a_copy_of_a_claimed_row_is_not_claimed(self, adding):
        video = Video.objects.create()
        claim = take(video)
        copy = Video.objects.get(pk=video.pk)
        copy.pk = None
        copy._state.adding = adding
        copy.save()
        assert columns(copy) == ("", 0, 0)
        assert (copy.lock_token, copy.lock_epoch) == ("", 0)
        claim.finish()


class TestBulkWrites:
    """Of instances that were read before, with all their fields: as import tools write them."""

    FIELDS = [field.name for field in Video._meta.concrete_fields if not field.primary_key]

    def test_bulk_update_leaves_them(self):
        video, other = Video.objects.create(), Video.objects.create()
        stale = take(video)
        old = list(Video.objects.order_by("pk"))
        fresh, others = take(video), take(other)
        for number, model in enumerate((Video, historical())):
            for row in old:
                row.progress = 9 + number
            model._base_manager.bulk_update(old, self.FIELDS)
            assert (columns(video), columns(other)) == ((fresh.token, 2, 9 + number), (others.token, 1, 9 + number))
        with pytest.raises(StaleClaim):
            stale.update(progress=1)
        fresh.update(progress=1)

    def test_an_upsert_leaves_them_and_a_row_that_it_makes_is_unclaimed(self):
        video, gone = Video.objects.create(), Video.objects.create()
        stale = take(video)
        take(gone)
        old = list(Video.objects.order_by("pk"))
        gone.delete()
        fresh = take(video)
        for row in old:
            row.progress = 9
        unique = {} if connection.vendor == "mysql" else {"unique_fields": ["id"]}
        Video.objects.bulk_create(old, update_conflicts=True, update_fields=self.FIELDS, **unique)
        assert (columns(old[0]), columns(old[1])) == ((fresh.token, 2, 9), ("", 0, 9))
        with pytest.raises(StaleClaim):
            stale.update(progress=1)

    def test_an_upsert_of_nothing_else_is_refused(self):
        video = Video.objects.create()
        unique = {} if connection.vendor == "mysql" else {"unique_fields": ["id"]}
        with pytest.raises(TaskLockError, match="testapp.Video.lock_.* belongs to the claim.*needs others"), atomic():
            Video.objects.bulk_create([video], update_conflicts=True, update_fields=["lock_token"], **unique)


class TestExplicitWrites:
    @pytest.mark.parametrize("value", [0, F("progress"), F("lock_epoch") - 1, F("lock_epoch") + F("progress")], ids=str)
    def test_an_update_cannot_set_the_epoch_back(self, value):
        video = Video.objects.create()
        take(video)
        with pytest.raises(TaskLockError, match="testapp.Video.lock_epoch belongs to the claim"), atomic():
            Video.objects.update(lock_epoch=value)
        assert columns(video)[1] == 1

    def test_an_update_may_raise_it_and_empty_the_token(self):
        video = Video.objects.create()
        stale = take(video)
        Video.objects.filter(lock_epoch=1, lock_token=stale.token).update(lock_token="", lock_epoch=F("lock_epoch") + 1)
        Video.objects.update(lock_epoch=F("lock_epoch"), lock_token=F("lock_token"))
        assert columns(video)[:2] == ("", 2)
        with pytest.raises(StaleClaim):
            stale.finish()
