"""The tables of the video site."""

import django.core.validators
import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Video",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "lock_token",
                    models.CharField(
                        blank=True,
                        db_default="",
                        db_index=True,
                        default="",
                        editable=False,
                        max_length=64,
                        verbose_name="lock token",
                    ),
                ),
                (
                    "lock_epoch",
                    models.BigIntegerField(db_default=0, default=0, editable=False, verbose_name="lock epoch"),
                ),
                ("title", models.CharField(max_length=200)),
                (
                    "upload",
                    models.FileField(
                        upload_to="uploads/",
                        validators=[
                            django.core.validators.FileExtensionValidator(["mp4", "m4v", "mov", "mkv", "webm", "avi"])
                        ],
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("uploading", "waiting"),
                            ("processing", "starting"),
                            ("transcoding", "transcoding"),
                            ("ready", "ready"),
                            ("failed", "failed"),
                        ],
                        default="uploading",
                        max_length=20,
                    ),
                ),
                ("progress", models.PositiveSmallIntegerField(default=0, help_text="Percent.")),
                ("hls_file", models.CharField(blank=True, editable=False, max_length=200, null=True)),
            ],
            options={
                "ordering": ("pk",),
            },
        ),
        migrations.CreateModel(
            name="Skip",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("reason", models.CharField(max_length=40)),
                ("at", models.DateTimeField(auto_now_add=True)),
                (
                    "video",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="skips", to="videos.video"
                    ),
                ),
            ],
            options={
                "ordering": ("pk",),
            },
        ),
        migrations.CreateModel(
            name="Rendition",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("height", models.PositiveIntegerField()),
                (
                    "video",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="renditions", to="videos.video"
                    ),
                ),
            ],
            options={
                "ordering": ("video", "height"),
            },
        ),
        migrations.CreateModel(
            name="Attempt",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("epoch", models.BigIntegerField(help_text="Which claim of the row this was.")),
                ("worker", models.CharField(max_length=200)),
                ("pid", models.PositiveIntegerField()),
                ("task_id", models.CharField(max_length=64)),
                ("started_at", models.DateTimeField(auto_now_add=True)),
                (
                    "outcome",
                    models.CharField(
                        choices=[
                            ("running", "running"),
                            ("published", "published"),
                            ("failed", "failed"),
                            ("overtaken", "overtaken"),
                        ],
                        default="running",
                        max_length=20,
                    ),
                ),
                (
                    "video",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="attempts", to="videos.video"
                    ),
                ),
            ],
            options={
                "ordering": ("pk",),
            },
        ),
    ]
