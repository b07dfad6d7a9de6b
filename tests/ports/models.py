"""The table of the video CMS. Porting it adds the two columns of ``GuardedModel``."""

from __future__ import annotations

import secrets

from django.db import models

from django_tasklock.models import GuardedModel

__all__ = ["Media", "OldMedia"]


def new_token() -> str:
    """A public id: what stands in URLs, messages and locks in place of the primary key."""
    return secrets.token_urlsafe(8)


class Columns(models.Model):
    """What both have."""

    token = models.SlugField(default=new_token, unique=True)
    status = models.CharField(max_length=20, default="queued")
    progress = models.IntegerField(default=0)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        abstract = True


class OldMedia(Columns):
    """Before."""


class Media(GuardedModel, Columns):
    """After."""
