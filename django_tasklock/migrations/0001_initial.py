from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
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
            ],
            options={
                "verbose_name": "lock",
                "verbose_name_plural": "locks",
                "db_table": "tasklock_lock",
            },
        ),
    ]
