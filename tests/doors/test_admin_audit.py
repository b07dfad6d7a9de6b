"""The audit trail in the admin: who may see it, what narrows it, and what a file of it has."""

from __future__ import annotations

import csv
import io
import json
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from django_tasklock import TaskLock, TaskLockError, operations
from django_tasklock.backends.database.names import key_of
from django_tasklock.models import AuditEntry
from django_tasklock.operations.trail import ActQuery
from django_tasklock.operations.values import Actor
from tests.support.admin_pages import Reader, page_of, words

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
    return [line.act.name for line in client.get(LIST, query).context["rows"]]


def read(answer: Any) -> str:
    """The whole of what is streamed."""
    return b"".join(answer.streaming_content).decode()


@pytest.mark.parametrize("kind", ["anonymous", "nobody", "staff", "operator", "auditor", "root"])
def test_who_may_look(visitor: Any, kind: str) -> None:
    """Looking at locks is another permission; nobody changes anything, by whatever method."""
    entry(1)
    client = visitor(kind)
    login, may = kind in ("anonymous", "nobody"), kind in ("auditor", "root")
    for url in (LIST, f"{LIST}export/"):
        assert client.get(url).status_code == (302 if login else 200 if may else 403), url
        for method in ("post", "put", "patch", "delete"):
            assert getattr(client, method)(url).status_code == (302 if login else 405 if may else 403), (url, method)
    assert client.get(f"{LIST}add/").status_code == (302 if login else 403)
    assert AuditEntry.objects.count() == 1


def test_every_filter_narrows(auditor: Client) -> None:
    """Who, what, when, name; a whole name first, then a part of one."""
    entry(1, days=3)
    entry(2, days=2, actor="Ann", action="ask")
    entry(21, days=1, actor="joanna")
    entry(3, action="reset_limit", name="tavily")
    assert shown(auditor) == ["tavily", "video:21", "video:2", "video:1"]
    assert shown(auditor, who="ANN") == ["video:21", "video:2"]
    assert shown(auditor, what="ask") == ["video:2"]
    assert shown(auditor, name="video:2") == ["video:2"], "the whole name"
    assert shown(auditor, name="deo:2") == ["video:21", "video:2"]
    with TaskLock("视频:42"):
        operations.ask_release("视频:42", by=Actor("Li"))
    assert shown(auditor, name="频:4") == ["视频:42"], "as it was called, whatever the column can hold"
    AuditEntry.objects.filter(actor="Li").delete()
    day = timezone.localtime(timezone.now() - timedelta(days=2)).date().isoformat()
    assert shown(auditor, since=day) == ["tavily", "video:21", "video:2"]
    assert shown(auditor, until=day) == ["video:2", "video:1"]
    assert shown(auditor, since=day, until=day, who="ann", what="ask", name="video:2") == ["video:2"]
    assert "No entry matches." in words(auditor.get(LIST, {"who": "nobody"}).text)


def test_what_cannot_be_meant_is_said(auditor: Client, settings: Any) -> None:
    entry(1)
    for wrong in ({"since": "yesterday"}, {"until": "2026-02-31"}, {"what": "everything"}, {"below": "x"}):
        answer = auditor.get(LIST, wrong)
        assert answer.status_code == 200
        assert shown(auditor, **wrong) == ["video:1"]
        assert bool(answer.context["form"].errors) is ("below" not in wrong)
    assert auditor.get(f"{LIST}export/", {"since": "yesterday"}).status_code == 302
    assert auditor.get(LIST, {"until": "9999-12-31", "since": "0001-01-01"}).status_code == 200
    settings.TIME_ZONE = "Asia/Shanghai"  # where that day began before there were any
    assert auditor.get(LIST, {"since": "0001-01-01"}).status_code == 200


def test_pages_follow_each_other(auditor: Client, django_assert_max_num_queries: Any) -> None:
    """Each entry once, also those that are equally old; what comes meanwhile moves nothing."""
    now = timezone.now()
    AuditEntry.objects.bulk_create(
        AuditEntry(at=now, actor="a", action="release", key="", name=f"n{number}") for number in range(250)
    )
    seen: list[str] = []
    url = LIST
    while url:
        with django_assert_max_num_queries(5):
            page = auditor.get(url)
        seen += [line.act.name for line in page.context["rows"]]
        url = LIST + page.context["next"] if page.context["next"] else ""
        entry(1)
    assert seen == [f"n{number}" for number in reversed(range(250))]


def test_a_file(auditor: Client, django_assert_max_num_queries: Any) -> None:
    """All that is wanted, read in pages of a thousand; formulas of spreadsheets are made harmless."""
    now = timezone.now()
    AuditEntry.objects.bulk_create(
        AuditEntry(at=now, actor="a", action="release", key="", name=f"n{number}", reason="=HYPERLINK(1)")
        for number in range(2500)
    )
    entry(1, reason='says "no",\nand more', actor="编辑")
    with django_assert_max_num_queries(7):
        answer = auditor.get(f"{LIST}export/", {"format": "csv"})
        rows = list(csv.reader(io.StringIO(read(answer))))
    assert answer["Content-Disposition"] == 'attachment; filename="tasklock-audit.csv"'
    assert rows[0] == ["at", "actor", "action", "name", "reason", "outcome"]
    assert rows[1][1:] == ["编辑", "release", "video:1", 'says "no",\nand more', "done"]
    assert datetime.fromisoformat(rows[1][0]).tzinfo is not None
    assert len(rows) == 2502
    assert rows[2][4] == "'=HYPERLINK(1)"
    found = json.loads(read(auditor.get(f"{LIST}export/", {"format": "json", "who": "a"})))
    assert len(found) == 2500
    assert found[0]["reason"] == "=HYPERLINK(1)"
    assert json.loads(read(auditor.get(f"{LIST}export/", {"format": "json", "who": "nobody"}))) == []
    assert answer["Content-Type"].startswith("text/csv")


def test_what_a_page_shows_is_what_its_file_has(auditor: Client) -> None:
    """The links to the files carry the filters."""
    entry(1)
    entry(2)
    page = auditor.get(LIST, {"name": "video:2"})
    for _label, url in page.context["exports"]:
        text = read(auditor.get(url))
        assert "video:2" in text
        assert "video:1" not in text


def test_texts_are_data(auditor: Client) -> None:
    entry(1, name=MARKUP, reason=MARKUP, outcome=MARKUP, actor=MARKUP)
    text = auditor.get(LIST).text
    assert MARKUP not in text
    assert Reader(text).refused() == []


def test_names_lead_to_their_pages_for_those_who_may_see_them(visitor: Any) -> None:
    entry(1)
    entry(2, action="change_limit", name="tavily")
    text = visitor("root").get(LIST).text
    assert f'href="{page_of("video:1")}"' in text
    assert 'href="/admin/tasklock/ratelimit/tavily/change/"' in text
    text = visitor("auditor").get(LIST).text
    assert "/change/" not in text


def test_what_is_kept_is_said(auditor: Client, settings: Any) -> None:
    settings.TASKLOCK = {**settings.TASKLOCK, "AUDIT_DAYS": 90}
    assert "older than 90 days" in words(auditor.get(LIST).text)
    settings.TASKLOCK = {**settings.TASKLOCK, "AUDIT_DAYS": None}
    assert "kept for ever" in words(auditor.get(LIST).text)


def test_the_operation_refuses_pages_that_cannot_be() -> None:
    for limit in (0, 1001):
        with pytest.raises(TaskLockError):
            operations.list_acts(ActQuery(), limit=limit)
