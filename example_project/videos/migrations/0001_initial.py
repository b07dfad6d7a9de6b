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
                        blank=True, db_index=True, default="", editable=False, max_length=64, verbose_name="lock token"
                    ),
                ),
                ("lock_epoch", models.BigIntegerField(default=0, editable=False, verbose_name="lock epoch")),
                ("title", models.CharField(max_length=200, verbose_name="title")),
                (
                    "upload",
                    models.FileField(
                        upload_to="uploads/",
                        validators=[
                            django.core.validators.FileExtensionValidator(["mp4", "m4v", "mov", "mkv", "webm", "avi"])
                        ],
                        verbose_name="file",
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True, verbose_name="uploaded")),
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
                        verbose_name="status",
                    ),
                ),
                (
                    "progress",
                    models.PositiveSmallIntegerField(default=0, help_text="Percent.", verbose_name="progress"),
                ),
                (
                    "duration",
                    models.FloatField(
                        blank=True, editable=False, help_text="Seconds.", null=True, verbose_name="duration"
                    ),
                ),
                (
                    "hls_file",
                    models.CharField(blank=True, editable=False, max_length=200, null=True, verbose_name="playlist"),
                ),
                (
                    "thumbnail",
                    models.CharField(blank=True, default="", editable=False, max_length=200, verbose_name="thumbnail"),
                ),
            ],
            options={
                "verbose_name": "video",
                "verbose_name_plural": "videos",
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
                ("width", models.PositiveIntegerField()),
                ("height", models.PositiveIntegerField()),
                ("bandwidth", models.PositiveIntegerField(help_text="Bits per second, at most.")),
                ("playlist", models.CharField(max_length=200)),
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
                ("transcoded_at", models.DateTimeField(help_text="When ffmpeg was done.", null=True)),
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
