from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("videos", "0001_initial"),
    ]

    operations = [
        migrations.AlterField(
            model_name="video",
            name="lock_token",
            field=models.CharField(
                blank=True, db_index=True, default="", editable=False, max_length=64, verbose_name="lock token"
            ),
        ),
    ]
