from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("tasklock", "0002_parked"),
    ]

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
                "default_permissions": (),
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
        migrations.AlterModelOptions(
            name="lockrow",
            options={"default_permissions": (), "verbose_name": "lock", "verbose_name_plural": "locks"},
        ),
        migrations.AlterModelOptions(
            name="parkedmessage",
            options={
                "default_permissions": (),
                "verbose_name": "parked message",
                "verbose_name_plural": "parked messages",
            },
        ),
        migrations.AddField(
            model_name="lockrow",
            name="asked_at",
            field=models.BigIntegerField(db_default=0, default=0),
        ),
        migrations.AlterField(
            model_name="lockrow",
            name="acquired_at",
            field=models.BigIntegerField(db_index=True, default=0),
        ),
        migrations.AlterField(
            model_name="lockrow",
            name="hold_until",
            field=models.BigIntegerField(db_index=True, default=0),
        ),
    ]
