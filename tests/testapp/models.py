"""Rows to guard: with the mixin's columns, without them, and one that is written beside them."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from django.db import connection, models

from django_tasklock.models import GuardedModel

__all__ = [
    "Cassette",
    "Channel",
    "Clip",
    "Draft",
    "Feature",
    "Import",
    "Note",
    "PlainFeature",
    "PlainImport",
    "PlainTape",
    "PlainVideo",
    "Playlist",
    "Reel",
    "Report",
    "Scene",
    "Sequel",
    "Shelf",
    "Tape",
    "Ticket",
    "Track",
    "Trailer",
    "Video",
    "Work",
]


class Video(GuardedModel):
    """Has the token and epoch columns: fully fenced."""

    status = models.CharField(max_length=20, default="uploading")
    progress = models.IntegerField(default=0)
    hls_file = models.CharField(max_length=200, null=True)


class PlainVideo(models.Model):
    """Has only its state: guarded by that alone."""

    status = models.CharField(max_length=20, default="uploading", db_index=True)
    progress = models.IntegerField(default=0)
    hls_file = models.CharField(max_length=200, null=True)


class Import(Video):
    """Another name of the same rows."""

    class Meta:
        proxy = True


class PlainImport(PlainVideo):
    """The same, guarded by its state alone."""

    class Meta:
        proxy = True


class Reel(models.Model):
    """Its key has many spellings, and it has two states."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    status = models.CharField(max_length=20, default="uploading")
    review = models.CharField(max_length=20, default="uploading")


class Track(GuardedModel):
    """Known outside by other keys than its primary key."""

    uid = models.UUIDField(default=uuid.uuid4, unique=True)
    token = models.CharField(max_length=40, null=True, unique=True)
    title = models.CharField(max_length=40, default="untitled")
    status = models.CharField(max_length=20, default="uploading")


class Playlist(GuardedModel):
    """Its database finds it by ``mix`` and by ``Mix``, except PostgreSQL, and by its time in any zone."""

    slug = models.SlugField(
        unique=True, db_collation={"sqlite": "NOCASE", "mysql": "utf8mb4_general_ci"}.get(connection.vendor)
    )
    made_at = models.DateTimeField(unique=True, null=True)
    status = models.CharField(max_length=20, default="uploading")


class Report(GuardedModel):
    """Has a result and no state."""

    result = models.CharField(max_length=40, default="")


class Scene(models.Model):
    """Its primary key has two columns, so no guard can claim it."""

    pk = models.CompositePrimaryKey("film", "number")
    film = models.IntegerField()
    number = models.IntegerField()
    status = models.CharField(max_length=20, default="uploading")


class Note(models.Model):
    """Another table, written inside ``claim.transaction()``."""

    video = models.ForeignKey(Video, on_delete=models.CASCADE)
    text = models.CharField(max_length=200)


class Ticket(models.Model):
    """Its state is nothing that JSON knows, and may be missing."""

    day = models.DateField(null=True)


class Channel(models.Model):
    """What a clip is in: reached from its row by a join."""

    blocked = models.BooleanField(default=False)


class Clip(GuardedModel):
    """Its guard may want to ask its channel."""

    channel = models.ForeignKey(Channel, on_delete=models.CASCADE)
    status = models.CharField(max_length=20, default="uploading")


class WithChannels(models.Manager["Trailer"]):
    """Joins the channel to whatever is read."""

    def get_queryset(self) -> models.QuerySet[Trailer]:
        return super().get_queryset().select_related("channel")


class Trailer(GuardedModel):
    """Its channel may be missing, and is joined all the same."""

    channel = models.ForeignKey(Channel, on_delete=models.CASCADE, null=True)
    status = models.CharField(max_length=20, default="uploading")
    hls_file = models.CharField(max_length=200, null=True)

    objects = WithChannels()

    class Meta:
        base_manager_name = "objects"


class WithoutHidden(models.Manager["Draft"]):
    """Leaves out hidden rows."""

    def get_queryset(self) -> models.QuerySet[Draft]:
        return super().get_queryset().filter(hidden=False)


class Draft(GuardedModel):
    """Deleted softly, also for what Django does by itself, such as ``save()``."""

    status = models.CharField(max_length=20, default="uploading")
    hls_file = models.CharField(max_length=200, null=True)
    hidden = models.BooleanField(default=False)

    objects = WithoutHidden()

    class Meta:
        base_manager_name = "objects"


class Work(models.Model):
    """The parent's table of a feature."""

    title = models.CharField(max_length=20, default="untitled")
    views = models.IntegerField(default=0)


class Feature(GuardedModel, Work):
    """Multi-table inheritance: state and token in its own table, its title in another."""

    status = models.CharField(max_length=20, default="uploading")
    progress = models.IntegerField(default=0)
    hls_file = models.CharField(max_length=200, null=True)


class PlainFeature(Work):
    """The same, guarded by its state alone."""

    status = models.CharField(max_length=20, default="uploading", db_index=True)
    progress = models.IntegerField(default=0)
    hls_file = models.CharField(max_length=200, null=True)


class Sequel(Feature):
    """State and token are columns of its parent: no single UPDATE can judge it."""

    number = models.IntegerField(default=2)


if TYPE_CHECKING:
    _IntegerField = models.IntegerField[int, int]
else:
    _IntegerField = models.IntegerField


class Version(_IntegerField):
    """Counts the saves of an instance, which it asks for its number."""

    def pre_save(self, model_instance: models.Model, add: bool) -> int:
        version: int = super().pre_save(model_instance, add) + 1
        setattr(model_instance, self.attname, version)
        return version


class Shelf(models.Model):
    """Where a cassette is: a parent's table, which knows when its row was saved."""

    updated_at = models.DateTimeField(auto_now=True)


class Recorded(models.Model):
    """Has columns that ``save()`` sets by itself, and others that it takes from the instance."""

    status = models.CharField(max_length=20, default="uploading")
    progress = models.IntegerField(default=0)
    made_at = models.DateTimeField(auto_now_add=True)
    version = Version(default=0)
    file = models.FileField(default="a.wav")

    class Meta:
        abstract = True


class Tape(GuardedModel, Recorded):
    """Its table knows when a row was saved."""

    updated_at = models.DateTimeField(auto_now=True)


class PlainTape(Recorded):
    """The same, guarded by its state alone."""

    updated_at = models.DateTimeField(auto_now=True)


class Cassette(GuardedModel, Recorded, Shelf):
    """Its parent's table knows when a row was saved."""
