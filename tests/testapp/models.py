"""Rows to guard: with the mixin's columns, without them, and one that is written beside them."""

from __future__ import annotations

from django.db import models

from django_tasklock.models import GuardedModel

__all__ = ["Note", "PlainVideo", "Ticket", "Video"]


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


class Note(models.Model):
    """Another table, written inside ``claim.transaction()``."""

    video = models.ForeignKey(Video, on_delete=models.CASCADE)
    text = models.CharField(max_length=200)


class Ticket(models.Model):
    """Its state is nothing that JSON knows, and may be missing."""

    day = models.DateField(null=True)
