"""Visits every page under django-unfold, and prints which; a process of its own, because a theme is for good.

``python -m tests.support.unfold_visit``, with ``tests.settings_unfold`` and a lock ``unfold:1`` that is held.
"""

from __future__ import annotations

import django

if __name__ == "__main__":
    django.setup()

from django.contrib.auth.models import User
from django.core.management import call_command
from django.test import Client
from django.test.utils import setup_test_environment
from django.urls import path
from unfold.admin import ModelAdmin
from unfold.sites import UnfoldAdminSite

from django_tasklock import operations
from django_tasklock.admin import LockAdmin, LockPanelMixin
from django_tasklock.models import Lock
from tests.testapp.models import Video


class UnfoldLockAdmin(LockAdmin, ModelAdmin):
    """As a project under this theme would have it."""


class VideoAdmin(LockPanelMixin, ModelAdmin):
    """A guarded model's page."""


site = UnfoldAdminSite(name="admin")
site.register(Lock, UnfoldLockAdmin)
site.register(Video, VideoAdmin)
urlpatterns = [path("admin/", site.urls)]


def visit() -> None:
    """Each page answers, and has in it what it is for."""
    setup_test_environment()
    call_command("migrate", run_syncdb=True, verbosity=0)
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    row = Video.objects.create()
    here = "/admin/tasklock/lock/"
    pick = f"{operations.get_lock('unfold:1').lock.info.fingerprint} unfold:1"
    for name, answer, part in (
        ("list", client.get(here), 'id="tasklock-table"'),
        ("lock", client.get(f"{here}unfold_3A1/change/"), 'id="tasklock-facts"'),
        ("free", client.get(f"{here}free/change/"), 'id="tasklock-explanation"'),
        ("release", client.get(f"{here}unfold_3A1/release/"), 'id="tasklock-confirm-form"'),
        ("ask", client.get(f"{here}unfold_3A1/ask/"), 'id="tasklock-confirm-form"'),
        ("selected", client.post(f"{here}release/", {"lock": pick}), 'id="tasklock-chosen"'),
        ("panel", client.get(f"/admin/testapp/video/{row.pk}/change/"), 'id="tasklock-panel"'),
    ):
        assert answer.status_code == 200, name
        assert part in answer.text, name
        assert "tasklock/admin.css" in answer.text, name
        print(name)


if __name__ == "__main__":
    visit()
