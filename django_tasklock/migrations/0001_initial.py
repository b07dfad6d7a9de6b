"""The tables of this app, made from its models."""

from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="AuditEntry",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("at", models.DateTimeField(db_index=True, verbose_name="time")),
                ("actor", models.CharField(max_length=255, verbose_name="who")),
                ("user_id", models.CharField(default="", max_length=64)),
                ("action", models.CharField(max_length=20, verbose_name="action")),
                ("key", models.CharField(db_index=True, help_text="the lock's name hashed", max_length=64)),
                ("name", models.CharField(max_length=255, verbose_name="name")),
                ("reason", models.TextField(default="", verbose_name="reason")),
                ("outcome", models.CharField(default="", max_length=255, verbose_name="outcome")),
            ],
            options={
                "verbose_name": "audit entry",
                "verbose_name_plural": "audit entries",
                "db_table": "tasklock_audit",
                "default_permissions": ("view",),
            },
        ),
        migrations.CreateModel(
            name="LimiterRow",
            fields=[
                (
                    "key",
                    models.CharField(help_text="SHA-256 of the name", max_length=64, primary_key=True, serialize=False),
                ),
                (
                    "fence",
                    models.BigIntegerField(db_index=True, default=0, help_text="of the last grant: new with every one"),
                ),
            ],
            options={
                "verbose_name": "concurrency limiter",
                "verbose_name_plural": "concurrency limiters",
                "db_table": "tasklock_limiter",
                "default_permissions": (),
            },
        ),
        migrations.CreateModel(
            name="LockRow",
            fields=[
                (
                    "key",
                    models.CharField(
                        help_text="SHA-256 of the name: alike under every collation",
                        max_length=64,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("name", models.CharField(max_length=255)),
                ("token", models.CharField(default="", max_length=64)),
                ("holder", models.TextField(default="{}")),
                ("acquired_at", models.BigIntegerField(default=0)),
                ("hold_until", models.BigIntegerField(default=0)),
                ("expires_at", models.BigIntegerField(db_index=True, default=0)),
                ("fence", models.BigIntegerField(default=0)),
                ("asked_at", models.BigIntegerField(default=0)),
            ],
            options={
                "verbose_name": "lock",
                "verbose_name_plural": "locks",
                "db_table": "tasklock_lock",
                "default_permissions": (),
            },
        ),
        migrations.CreateModel(
            name="PermitRow",
            fields=[
                ("token", models.CharField(max_length=64, primary_key=True, serialize=False)),
                ("key", models.CharField(db_index=True, help_text="SHA-256 of the limiter's name", max_length=64)),
                ("holder", models.TextField(default="{}")),
                ("acquired_at", models.BigIntegerField(default=0)),
                ("hold_until", models.BigIntegerField(default=0)),
                ("expires_at", models.BigIntegerField(db_index=True, default=0)),
                ("fence", models.BigIntegerField(default=0)),
            ],
            options={
                "verbose_name": "permit",
                "verbose_name_plural": "permits",
                "db_table": "tasklock_permit",
                "default_permissions": (),
            },
        ),
        migrations.CreateModel(
            name="RateRow",
            fields=[
                (
                    "key",
                    models.CharField(help_text="SHA-256 of the name", max_length=64, primary_key=True, serialize=False),
                ),
                ("name", models.CharField(max_length=255)),
                ("state", models.TextField()),
                ("version", models.BigIntegerField(default=0, help_text="raised by every change")),
                ("used_at", models.BigIntegerField(db_index=True, default=0)),
                (
                    "expires_at",
                    models.BigIntegerField(db_index=True, default=0, help_text="when nothing in it matters any more"),
                ),
            ],
            options={
                "verbose_name": "rate limiter",
                "verbose_name_plural": "rate limiters",
                "db_table": "tasklock_rate",
                "default_permissions": (),
            },
        ),
        migrations.CreateModel(
            name="SweepEntry",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("at", models.DateTimeField(verbose_name="time")),
                ("actor", models.CharField(max_length=255, verbose_name="who")),
                (
                    "scope",
                    models.CharField(default="", help_text="what it was confined to; empty: nothing", max_length=255),
                ),
                ("swept", models.BigIntegerField(default=0, help_text="how much it repaired")),
                ("seconds", models.FloatField(default=0)),
                (
                    "problem",
                    models.CharField(default="", help_text="why it broke off", max_length=255, verbose_name="problem"),
                ),
                ("counts", models.JSONField(default=dict)),
            ],
            options={
                "verbose_name": "run of the sweep",
                "verbose_name_plural": "runs of the sweep",
                "db_table": "tasklock_sweep",
                "required_db_features": ("supports_json_field",),
                "default_permissions": (),
            },
        ),
        migrations.CreateModel(
            name="EventCount",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "hour",
                    models.BigIntegerField(help_text="its beginning, in seconds since 1970; 0: all hours of long ago"),
                ),
                ("event", models.CharField(max_length=40)),
                ("kind", models.CharField(help_text="in ASCII, with escapes", max_length=100)),
                (
                    "bucket",
                    models.SmallIntegerField(
                        help_text="of a histogram of durations; 0 for an event without a duration"
                    ),
                ),
                ("number", models.BigIntegerField()),
                ("milliseconds", models.BigIntegerField(help_text="the sum of the durations")),
            ],
            options={
                "verbose_name": "count",
                "verbose_name_plural": "counts",
                "db_table": "tasklock_event_count",
                "default_permissions": (),
                "constraints": [
                    models.UniqueConstraint(fields=("hour", "event", "kind", "bucket"), name="tasklock_event_count_key")
                ],
            },
        ),
        migrations.CreateModel(
            name="Lock",
            fields=[],
            options={
                "verbose_name": "live lock",
                "verbose_name_plural": "live locks",
                "permissions": [("release_lock", "Can release locks")],
                "proxy": True,
                "default_permissions": ("view",),
                "indexes": [],
                "constraints": [],
            },
            bases=("tasklock.lockrow",),
        ),
        migrations.CreateModel(
            name="ParkedMessage",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("key", models.CharField(max_length=64)),
                ("name", models.CharField(max_length=255)),
                ("number", models.BigIntegerField()),
                ("mode", models.CharField(max_length=10)),
                ("state", models.CharField(max_length=10)),
                ("task", models.CharField(max_length=255)),
                ("task_id", models.CharField(max_length=191, unique=True)),
                ("message", models.TextField()),
                ("sent", models.IntegerField(default=0, help_text="how often it was put back into the broker")),
                (
                    "attempts",
                    models.IntegerField(
                        default=0, help_text="how often in a row it was put back and no worker took it"
                    ),
                ),
                (
                    "problem",
                    models.CharField(default="", help_text="why it is dead", max_length=255, verbose_name="problem"),
                ),
                (
                    "place",
                    models.IntegerField(
                        help_text="one of queue_limit places, so that no two take the last one", null=True
                    ),
                ),
                ("parked_at", models.BigIntegerField()),
                ("changed_at", models.BigIntegerField()),
            ],
            options={
                "verbose_name": "parked message",
                "verbose_name_plural": "parked messages",
                "db_table": "tasklock_parked",
                "default_permissions": ("view", "change"),
                "indexes": [models.Index(fields=["key", "state", "number"], name="tasklock_parked_line")],
                "constraints": [models.UniqueConstraint(fields=("key", "place"), name="tasklock_parked_place")],
            },
        ),
        migrations.CreateModel(
            name="RateLimit",
            fields=[],
            options={
                "verbose_name": "rate limit",
                "verbose_name_plural": "rate limits",
                "proxy": True,
                "default_permissions": ("view", "change"),
                "indexes": [],
                "constraints": [],
            },
            bases=("tasklock.raterow",),
        ),
    ]
