from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("tasklock", "0003_operators"),
    ]

    operations = [
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
