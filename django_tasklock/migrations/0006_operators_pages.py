"""The runs of the sweep are remembered, and the audit trail has a permission to look at it."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("tasklock", "0005_dead"),
    ]

    operations = [
        migrations.AlterModelOptions(
            name="auditentry",
            options={
                "default_permissions": ("view",),
                "verbose_name": "audit entry",
                "verbose_name_plural": "audit entries",
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
                ("swept", models.BigIntegerField(default=0, help_text="how much it put right")),
                ("seconds", models.FloatField(default=0)),
                (
                    "problem",
                    models.CharField(default="", help_text="why it broke off", max_length=255, verbose_name="problem"),
                ),
                ("report", models.TextField(default="{}")),
            ],
            options={
                "verbose_name": "run of the sweep",
                "verbose_name_plural": "runs of the sweep",
                "db_table": "tasklock_sweep",
                "default_permissions": (),
            },
        ),
    ]
