"""On an admin site of a project's own nothing leads to another one, and a guarded row's page says who works on it."""

from __future__ import annotations

import re
from typing import Any
from uuid import UUID

import pytest
from django.contrib.auth.models import Permission, User
from django.db.models.signals import pre_save
from django.test import Client

from django_tasklock import StateGuard, model_lock
from django_tasklock.backends import get_backend
from tests.support.admin_pages import LIST, words
from tests.support.redis_server import free_port
from tests.testapp.models import Track, Video

pytest_plugins = ["tests.support.admin_fixtures"]
pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("admin_settings"),
]

GUARD = StateGuard(field="status", claim_from=["uploading"], claim_as="processing")
OURS = "/operators/tasklock/lock/"


@model_lock(Video, "panel:{video_id}", guard=GUARD, pk="video_id")
def process(video_id: int) -> None:
    """Its lock goes by the primary key alone."""


@model_lock(Track, guard=GUARD, lookup="uid")
def process_track(uid: UUID) -> None:
    """Its lock goes by another key."""


def links(text: str) -> list[str]:
    """Where a page leads or sends its forms."""
    return re.findall(r'(?:href|action)="([^"]*)"', text)


# A site of one's own


def test_all_links_stay_on_the_site(visitor, take) -> None:
    """Nothing leads from a project's own site to the default one."""
    client = visitor("root")
    row = Video.objects.create(status="processing")
    known = take("a", row=f"testapp.video:{row.pk}")
    for url in (OURS, f"{OURS}a/change/", f"{OURS}a/release/", f"{OURS}a/ask/", f"{OURS}?q=none"):
        page = client.get(url)
        assert page.status_code == 200
        assert "Operators" in page.text
        assert [link for link in links(page.text) if link.startswith("/admin/")] == [], url
    assert f"/operators/testapp/video/{row.pk}/change/" in client.get(OURS).text
    assert "/testapp/video/" not in client.get(LIST).text, "which is registered here, and not there"
    answer = client.post(f"{OURS}release/", {"lock": f"{known} a", "confirm": "yes", "reason": "x"})
    assert answer["Location"] == OURS
    assert get_backend().get("a") is None
    assert client.get(f"{OURS}a/delete/")["Location"] == f"{OURS}a/release/"
    for model in ("ratelimit/", "parkedmessage/", "auditentry/", "sweepentry/", "lock/overview/"):
        text = client.get(f"/operators/tasklock/{model}").text
        assert [link for link in links(text) if link.startswith("/admin/")] == [], model


def test_a_row_is_linked_for_those_who_may_see_it(visitor, take) -> None:
    """Registered is not enough."""
    row = Video.objects.create(status="processing")
    take("a", row=f"testapp.video:{row.pk}")
    client = visitor("viewer")
    link = f"/operators/testapp/video/{row.pk}/change/"
    for url in (OURS, f"{OURS}a/change/"):
        assert link not in client.get(url).text
        assert f"testapp.video:{row.pk}" in words(client.get(url).text)
    permission = Permission.objects.get(codename="view_video", content_type__app_label="testapp")
    User.objects.get(username="viewer").user_permissions.add(permission)
    for url in (OURS, f"{OURS}a/change/"):
        assert link in client.get(url).text


def present() -> str:
    """The tenant whose code runs here."""
    return "b"


def test_a_row_of_another_tenant_or_of_none_is_not_linked(visitor, take, settings: Any) -> None:
    """Its key is that of another row here; or its holder runs a newer version, or has written nonsense."""
    settings.TASKLOCK = {**settings.TASKLOCK, "KEY_PREFIX": f"{__name__}.present"}
    row = Video.objects.create(status="processing")
    client, link = visitor("root"), f"/operators/testapp/video/{row.pk}/change/"
    for name, linked in ((f"a:video:{row.pk}", False), (f"b:video:{row.pk}", True)):
        take(name, row=f"testapp.video:{row.pk}")
        assert (link in client.get(f"{OURS}?q={name}").text) is linked, name
    for number, where in enumerate(("testapp.video", "nothing.here:1", ":", "testapp.note:1")):
        take(f"b:{number}", row=where)
        assert client.get(f"{OURS}b_3A{number}/change/").status_code == 200
    assert client.get(OURS).status_code == 200


# The panel


def panel(client: Client, row: Any) -> str:
    """What a guarded row's page says of its lock."""
    page = client.get(f"/operators/testapp/{row._meta.model_name}/{row.pk}/change/")
    assert page.status_code == 200
    found = re.search(r'id="tasklock-panel".*?</div>', page.text, re.DOTALL)
    return words(found[0]) if found else ""


def test_the_panel_says_who_works_on_the_row(visitor, take, settings: Any) -> None:
    """And leads to the lock. The page is no worse for a store that is down, nor for those who may not see locks."""
    client = visitor("root")
    row = Video.objects.create()
    assert "free" in panel(client, row)
    take(f"panel:{row.pk}")
    assert "live" in panel(client, row)
    assert "worker-1:42" in panel(client, row)
    page = client.get(f"/operators/testapp/video/{row.pk}/change/").text
    assert f'href="{OURS}panel_3A{row.pk}/change/"' in page
    assert "tasklock/admin.css" in page
    settings.TASKLOCK = {"LOCATION": f"redis://127.0.0.1:{free_port()}/0"}
    assert "cannot be reached" in panel(client, row)
    permission = Permission.objects.get(codename="change_video", content_type__app_label="testapp")
    staff = visitor("staff")
    User.objects.get(username="staff").user_permissions.add(permission)
    assert panel(staff, row) == ""


def test_no_form_sets_the_state_of_a_row_back(visitor) -> None:
    """It has the state of when it was shown, or of when the request began. The row of a new one gets any."""
    client = visitor("root")
    base = "/operators/testapp/video/"
    row = Video.objects.create(status="ready")
    change = f"{base}{row.pk}/change/"
    assert 'name="status"' not in client.get(change).text + client.get(base).text
    assert 'name="status"' in client.get(f"{base}add/").text

    def claims(sender: Any, instance: Any, **details: Any) -> None:
        Video.objects.filter(pk=instance.pk).update(status="processing")

    pre_save.connect(claims, sender=Video)
    try:
        assert client.post(change, {"status": "stale", "progress": 7, "hls_file": "x"}).status_code == 302
    finally:
        pre_save.disconnect(claims, sender=Video)
    row.refresh_from_db()
    assert (row.status, row.progress) == ("processing", 7)
    rows = {"form-TOTAL_FORMS": 1, "form-INITIAL_FORMS": 1, "form-0-id": row.pk, "form-0-status": "stale", "_save": ""}
    client.post(base, rows)
    row.refresh_from_db()
    assert row.status == "processing"
    client.post(f"{base}add/", {"status": "uploading", "progress": 0, "hls_file": "x"})
    assert Video.objects.filter(status="uploading").exists()


def test_a_lock_and_its_row_lead_to_each_other_by_another_key(visitor, take) -> None:
    """The row's page is found by it, and the row from the lock."""
    client = visitor("root")
    row, other = Track.objects.create(title="Aria"), Track.objects.create(title="Bourree")
    take(f"testapp.track:{row.uid}", row=f"testapp.track.uid:{row.uid}")
    assert "live" in panel(client, row)
    assert "free" in panel(client, other)
    [link] = {link for link in links(client.get(OURS).text) if "uid=" in link}
    assert link == f"/operators/testapp/track/?uid={row.uid}"
    page = client.get(link).text
    assert f"/operators/testapp/track/{row.pk}/change/" in page
    assert f"/operators/testapp/track/{other.pk}/change/" not in page
