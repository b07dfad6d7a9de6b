from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("tasklock", "0001_initial"),
    ]

    operations = [
        migrations.CreateModel(
            name="ParkedMessage",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("key", models.CharField(max_length=64)),
                ("name", models.CharField(max_length=255)),
                ("ticket", models.BigIntegerField()),
                ("mode", models.CharField(max_length=10)),
                ("state", models.CharField(max_length=10)),
                ("task", models.CharField(max_length=255)),
                ("task_id", models.CharField(max_length=191, unique=True)),
                ("message", models.TextField()),
                ("holder", models.TextField(default="{}")),
                ("sent", models.IntegerField(default=0, help_text="how often it was put back into the broker")),
                ("crashes", models.IntegerField(default=0, help_text="how many workers died of it")),
                (
                    "place",
                    models.IntegerField(
                        null=True, help_text="one of queue_limit places, so that no two take the last one"
                    ),
                ),
                ("parked_at", models.BigIntegerField()),
                ("changed_at", models.BigIntegerField()),
            ],
            options={
                "verbose_name": "parked message",
                "verbose_name_plural": "parked messages",
                "db_table": "tasklock_parked",
                "indexes": [models.Index(fields=["key", "state", "ticket"], name="tasklock_parked_line")],
                "constraints": [models.UniqueConstraint(fields=["key", "place"], name="tasklock_parked_place")],
            },
        ),
    ]
