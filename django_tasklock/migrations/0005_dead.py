"""Messages that no worker takes get a state of their own, and all messages are signed.

Whatever is in the table while this runs is signed: from here on a row without a signature is not put back into the
broker. What workers of the older version park after this is put back by them, or by an operator.
"""

import json

from django.core.signing import Signer
from django.db import migrations, models


def sign(apps, schema_editor):
    """Sign as ``django_tasklock.celery.parking.envelope`` does."""
    signer = Signer(salt="django_tasklock.parked")
    rows = apps.get_model("tasklock", "ParkedMessage").objects.using(schema_editor.connection.alias)
    for pk in list(rows.values_list("pk", flat=True)):
        try:
            kept = json.loads(rows.values_list("message", flat=True).get(pk=pk))
        except (ValueError, rows.model.DoesNotExist):
            continue
        if isinstance(kept, dict) and "signature" not in kept:
            signature = signer.signature(json.dumps(kept, sort_keys=True, separators=(",", ":")))
            rows.filter(pk=pk).update(message=json.dumps({**kept, "signature": signature}))


class Migration(migrations.Migration):
    dependencies = [
        ("tasklock", "0004_limits"),
    ]

    operations = [
        migrations.AlterModelOptions(
            name="parkedmessage",
            options={
                "default_permissions": ("view", "change"),
                "verbose_name": "parked message",
                "verbose_name_plural": "parked messages",
            },
        ),
        migrations.AddField(
            model_name="parkedmessage",
            name="attempts",
            field=models.IntegerField(
                db_default=0, default=0, help_text="how often in a row it was put back and no worker took it"
            ),
        ),
        migrations.AddField(
            model_name="parkedmessage",
            name="problem",
            field=models.CharField(
                db_default="", default="", help_text="why it is dead", max_length=255, verbose_name="problem"
            ),
        ),
        migrations.RunPython(sign, migrations.RunPython.noop),
    ]
