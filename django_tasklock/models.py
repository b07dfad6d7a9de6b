"""``GuardedModel``, whose rows refuse writes of stale claims, and the tables of this app."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_tasklock import columns  # noqa: F401  # it keeps the columns of every model that is made from here on


class GuardedModel(models.Model):
    """Mix this into a model whose rows are claimed with a ``StateGuard``.

    ``lock_token`` is the token of the claim, empty while the row is not claimed (indexed, so that the sweep finds
    claimed rows among millions); ``lock_epoch`` is the number of claims so far. A write of a stale claim is refused
    because the two do not match any more. They change only with claims, see ``columns``: ``save()`` of an
    existing row does not write them. It does write the other columns, with or without a claim, so use
    ``current_claim().update()`` in a guarded body.
    """

    # In the database, too: processes that do not know the columns yet go on inserting rows during a deploy.
    lock_token = models.CharField(
        _("lock token"), max_length=64, default="", db_default="", blank=True, editable=False, db_index=True
    )
    lock_epoch = models.BigIntegerField(_("lock epoch"), default=0, db_default=0, editable=False)

    class Meta:
        abstract = True


class LockRow(models.Model):
    """One lock of the database backend. Only ``backends.database`` reads or writes it.

    A released lock keeps its row for a while, so that its fence goes on growing. Times are the database's clock, in
    milliseconds since 1970.
    """

    key = models.CharField(
        max_length=64, primary_key=True, help_text="SHA-256 of the name: alike under every collation"
    )
    name = models.CharField(max_length=255)
    token = models.CharField(max_length=64, default="")
    holder = models.TextField(default="{}")
    acquired_at = models.BigIntegerField(default=0)
    hold_until = models.BigIntegerField(default=0)
    expires_at = models.BigIntegerField(default=0, db_index=True)
    fence = models.BigIntegerField(default=0)
    asked_at = models.BigIntegerField(default=0)

    class Meta:
        db_table = "tasklock_lock"
        default_permissions = ()
        verbose_name = _("lock")
        verbose_name_plural = _("locks")

    def __str__(self) -> str:
        return self.name


class Lock(LockRow):
    """The model behind the admin pages, permissions and audit entries of locks in any store. Never queried."""

    class Meta:
        proxy = True
        verbose_name = _("live lock")
        verbose_name_plural = _("live locks")
        default_permissions = ("view",)
        permissions: ClassVar = [("release_lock", _("Can release locks"))]

    def __str__(self) -> str:
        return self.key


class AuditEntry(models.Model):
    """An action on a lock, a limiter or a message by someone other than its holder. Only ``operations`` writes it."""

    at = models.DateTimeField(_("time"), db_index=True)
    actor = models.CharField(_("who"), max_length=255)
    user_id = models.CharField(max_length=64, default="")
    action = models.CharField(_("action"), max_length=20)
    key = models.CharField(max_length=64, db_index=True, help_text="the lock's name hashed")
    name = models.CharField(_("name"), max_length=255)
    reason = models.TextField(_("reason"), default="")
    outcome = models.CharField(_("outcome"), max_length=255, default="")

    class Meta:
        db_table = "tasklock_audit"
        verbose_name = _("audit entry")
        verbose_name_plural = _("audit entries")
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"{self.actor}: {self.action} {self.name}"


class SweepEntry(models.Model):
    """One run of the sweep. Only ``operations`` writes it."""

    at = models.DateTimeField(_("time"))
    actor = models.CharField(_("who"), max_length=255)
    scope = models.CharField(max_length=255, default="", help_text="what it was confined to; empty: nothing")
    swept = models.BigIntegerField(default=0, help_text="how much it repaired")
    seconds = models.FloatField(default=0)
    problem = models.CharField(_("problem"), max_length=255, default="", help_text="why it broke off")
    counts = models.JSONField(default=dict)

    class Meta:
        db_table = "tasklock_sweep"
        required_db_features = ("supports_json_field",)  # otherwise ``manage.py check`` would ask the database for it
        verbose_name = _("run of the sweep")
        verbose_name_plural = _("runs of the sweep")
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.actor}: {self.swept}"


class ParkedMessage(models.Model):
    """A task's message that is stored outside the broker. Only ``django_tasklock.celery`` reads or writes it.

    It waits for its lock, and is deleted when its run begins. ``message`` is signed with ``SECRET_KEY``; ``key`` is the
    hash of the lock's name, ``number`` the order of publication. Times are the database's clock, in milliseconds since
    1970.
    """

    key = models.CharField(max_length=64)
    name = models.CharField(max_length=255)
    number = models.BigIntegerField()
    mode = models.CharField(max_length=10)
    state = models.CharField(max_length=10)
    task = models.CharField(max_length=255)
    task_id = models.CharField(max_length=191, unique=True)
    message = models.TextField()
    sent = models.IntegerField(default=0, help_text="how often it was put back into the broker")
    attempts = models.IntegerField(default=0, help_text="how often in a row it was put back and no worker took it")
    problem = models.CharField(_("problem"), max_length=255, default="", help_text="why it is dead")
    place = models.IntegerField(null=True, help_text="one of queue_limit places, so that no two take the last one")
    parked_at = models.BigIntegerField()
    changed_at = models.BigIntegerField()
    now: int  # the database's time when the row was read

    class Meta:
        db_table = "tasklock_parked"
        default_permissions = ("view", "change")
        verbose_name = _("parked message")
        verbose_name_plural = _("parked messages")
        indexes: ClassVar = [models.Index(fields=["key", "state", "number"], name="tasklock_parked_line")]
        constraints: ClassVar = [models.UniqueConstraint(fields=["key", "place"], name="tasklock_parked_place")]

    def __str__(self) -> str:
        return f"{self.task}[{self.task_id}]"


class LimiterRow(models.Model):
    """One concurrency limiter of the database backend: its row serializes the grants of permits."""

    key = models.CharField(max_length=64, primary_key=True, help_text="SHA-256 of the name")
    fence = models.BigIntegerField(default=0, db_index=True, help_text="of the last grant: new with every one")

    class Meta:
        db_table = "tasklock_limiter"
        default_permissions = ()
        verbose_name = _("concurrency limiter")
        verbose_name_plural = _("concurrency limiters")

    def __str__(self) -> str:
        return self.key


class PermitRow(models.Model):
    """One permit of a concurrency limiter, held or expired. Times as in ``LockRow``."""

    token = models.CharField(max_length=64, primary_key=True)
    key = models.CharField(max_length=64, db_index=True, help_text="SHA-256 of the limiter's name")
    holder = models.TextField(default="{}")
    acquired_at = models.BigIntegerField(default=0)
    hold_until = models.BigIntegerField(default=0)
    expires_at = models.BigIntegerField(default=0, db_index=True)
    fence = models.BigIntegerField(default=0)

    class Meta:
        db_table = "tasklock_permit"
        default_permissions = ()
        verbose_name = _("permit")
        verbose_name_plural = _("permits")

    def __str__(self) -> str:
        return self.key


class EventCount(models.Model):
    """How often an event of locks, limiters or messages of one kind has happened in one hour. See ``counts``."""

    hour = models.BigIntegerField(help_text="its beginning, in seconds since 1970; 0: all hours of long ago")
    event = models.CharField(max_length=40)
    kind = models.CharField(max_length=100, help_text="in ASCII, with escapes")
    bucket = models.SmallIntegerField(help_text="of a histogram of durations; 0 for an event without a duration")
    number = models.BigIntegerField()
    milliseconds = models.BigIntegerField(help_text="the sum of the durations")

    class Meta:
        db_table = "tasklock_event_count"
        default_permissions = ()
        verbose_name = _("count")
        verbose_name_plural = _("counts")
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["hour", "event", "kind", "bucket"], name="tasklock_event_count_key")
        ]

    def __str__(self) -> str:
        return f"{self.event} {self.kind}"


class RateRow(models.Model):
    """One rate limiter of the database backend, as JSON. Times are the database's clock, in ms since 1970."""

    key = models.CharField(max_length=64, primary_key=True, help_text="SHA-256 of the name")
    name = models.CharField(max_length=255)
    state = models.TextField()
    version = models.BigIntegerField(default=0, help_text="raised by every change")
    used_at = models.BigIntegerField(default=0, db_index=True)
    expires_at = models.BigIntegerField(default=0, db_index=True, help_text="when nothing in it matters any more")

    class Meta:
        db_table = "tasklock_rate"
        default_permissions = ()
        verbose_name = _("rate limiter")
        verbose_name_plural = _("rate limiters")

    def __str__(self) -> str:
        return self.name


class RateLimit(RateRow):
    """The model behind the admin pages, permissions and audit entries of limiters of both kinds in any store.

    Never queried.
    """

    class Meta:
        proxy = True
        verbose_name = _("rate limit")
        verbose_name_plural = _("rate limits")
        default_permissions = ("view", "change")

    def __str__(self) -> str:
        return self.key
