"""The audit trail in the admin: what narrows it, and what a file of it has."""

from __future__ import annotations

import csv
import io
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from django_tasklock import TaskLock, operations
from django_tasklock.backends.database.names import key_of
from django_tasklock.models import AuditEntry
from django_tasklock.operations.values import Actor
from tests.support.admin_pages import Reader, page_of, table

pytest_plugins = ["tests.support.admin_fixtures"]
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("admin_settings", "locks")]

LIST = "/admin/tasklock/auditentry/"
MARKUP = "<script>alert('1')</script>&<b>\"x\"</b>"


def entry(number: int, *, days: float = 0, **values: Any) -> AuditEntry:
    """What somebody did so many days ago."""
    known = {"actor": f"user{number}", "action": "release", "name": f"video:{number}", "reason": "", "outcome": "done"}
    known |= values
    at = timezone.now() - timedelta(days=days)
    return AuditEntry.objects.create(at=at, key=key_of(known["name"]), **known)


@pytest.fixture
def auditor(visitor: Any) -> Client:
    return visitor("auditor")


def shown(client: Client, **query: Any) -> list[str]:
    """The names on the page, from top to bottom."""
    return [line["subject"] for line in table(client.get(LIST, query).text)]


def download(client: Client, **query: Any) -> list[list[str]]:
    """The lines of a file of all that is listed."""
    data = {"action": "as_csv", "select_across": "1", "index": "0", "_selected_action": "0"}
    answer: Any = client.post(f"{LIST}?{'&'.join(f'{key}={value}' for key, value in query.items())}", data)
    assert answer["Content-Type"].startswith("text/csv")
    assert answer["Content-Disposition"] == 'attachment; filename="tasklock-audit.csv"'
    return list(csv.reader(io.StringIO(b"".join(answer.streaming_content).decode())))


def test_every_filter_narrows(auditor: Client) -> None:
    """Who, what, when, name; a whole name first, then a part of one."""
    entry(1, days=3)
    entry(2, days=2, actor="Ann", action="ask")
    entry(21, days=1, actor="joanna")
    entry(3, action="reset_limit", name="tavily")
    assert shown(auditor) == ["tavily", "video:21", "video:2", "video:1"]
    assert shown(auditor, q="ANN") == ["video:21", "video:2"]
    assert shown(auditor, action="ask") == ["video:2"]
    assert shown(auditor, action="everything") == ["tavily", "video:21", "video:2", "video:1"]
    assert shown(auditor, q="video:2") == ["video:2"], "the whole name"
    assert shown(auditor, q="deo:2") == ["video:21", "video:2"]
    with TaskLock("视频:42"):
        operations.ask_release("视频:42", by=Actor("Li"))
    assert shown(auditor, q="频:4") == ["视频:42"], "as it was called, whatever the column can hold"
    AuditEntry.objects.filter(actor="Li").delete()
    since, before = (f"{timezone.now() - timedelta(days=days):%Y-%m-%dT%H:%MZ}" for days in (2.5, 1.5))
    assert shown(auditor, at__gte=since) == ["tavily", "video:21", "video:2"]
    assert shown(auditor, at__gte=since, at__lt=before, q="ann", action="ask") == ["video:2"]
    assert auditor.get(LIST, {"at__gte": "yesterday"}).headers["Location"].endswith("?e=1")
    assert shown(auditor, q="nobody") == []


def test_a_file(auditor: Client, django_assert_max_num_queries: Any) -> None:
    """All that is listed; formulas of spreadsheets are made harmless."""
    now = timezone.now()
    AuditEntry.objects.bulk_create(
        AuditEntry(at=now, actor="a", action="release", key="", name=f"n{number}", reason="=HYPERLINK(1)")
        for number in range(1100)
    )
    entry(1, reason='says "no",\nand more', actor="编辑")
    with django_assert_max_num_queries(10):
        rows = download(auditor)
    assert rows[0] == ["at", "actor", "action", "name", "reason", "outcome"]
    assert rows[1][1:] == ["编辑", "release", "video:1", 'says "no",\nand more', "done"]
    assert datetime.fromisoformat(rows[1][0]).tzinfo is not None
    assert len(rows) == 1102
    assert rows[2][4] == "'=HYPERLINK(1)"
    assert [row[3] for row in download(auditor, q="video:1")] == ["name", "video:1"], "what is filtered"


def test_texts_are_data(auditor: Client) -> None:
    made = entry(1, name=MARKUP, reason=MARKUP, outcome=MARKUP, actor=MARKUP)
    for url in (LIST, f"{LIST}{made.pk}/change/"):
        text = auditor.get(url).text
        assert MARKUP not in text
        assert Reader(text).refused() == []


def test_names_lead_to_their_pages_for_those_who_may_see_them(visitor: Any) -> None:
    entry(1)
    entry(2, action="change_limit", name="tavily")
    text = visitor("root").get(LIST).text
    assert f'href="{page_of("video:1")}"' in text
    assert 'href="/admin/tasklock/ratelimit/tavily/change/"' in text
    text = visitor("auditor").get(LIST).text
    assert page_of("video:1") not in text
    assert "/ratelimit/" not in text
