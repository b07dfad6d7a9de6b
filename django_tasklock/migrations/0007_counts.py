"""What the database store counts, and the last holds of its names; messages are counted here whatever the store is."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("tasklock", "0006_operators_pages"),
    ]

    operations = [
        migrations.CreateModel(
            name="CountRow",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "at",
                    models.BigIntegerField(db_index=True, help_text="when; of many at once, the hour; 0: longer ago"),
                ),
                ("event", models.CharField(max_length=40)),
                ("kind", models.CharField(max_length=100)),
                ("number", models.BigIntegerField(default=1)),
                ("amount", models.BigIntegerField(default=0, help_text="milliseconds that they took together")),
                (
                    "folded",
                    models.BooleanField(db_index=True, default=False, help_text="whether it is of many at once"),
                ),
            ],
            options={
                "verbose_name": "count",
                "verbose_name_plural": "counts",
                "db_table": "tasklock_count",
                "default_permissions": (),
            },
        ),
        migrations.CreateModel(
            name="HoldRow",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("key", models.CharField(db_index=True, help_text="SHA-256 of the name", max_length=64)),
                ("kind", models.CharField(max_length=100)),
                ("holder", models.TextField(default="{}")),
                ("at", models.BigIntegerField()),
                ("ended_at", models.BigIntegerField(db_index=True)),
                ("how", models.CharField(max_length=10)),
            ],
            options={
                "verbose_name": "past hold",
                "verbose_name_plural": "past holds",
                "db_table": "tasklock_hold",
                "default_permissions": (),
            },
        ),
    ]
