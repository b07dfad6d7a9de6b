"""What lies in a table is listed, narrowed and said in the admin: parked messages, audit trail, runs of the sweep."""

from __future__ import annotations

import csv
import io
import json
import sys
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.db import DatabaseError
from django.test import Client
from django.utils import timezone

from django_tasklock import TaskLock, operations
from django_tasklock.admin import tables
from django_tasklock.backends import get_backend
from django_tasklock.backends.database.names import key_of
from django_tasklock.exceptions import BackendUnavailable
from django_tasklock.models import AuditEntry, ParkedMessage, SweepEntry
from django_tasklock.operations.sweep import runs, stream
from django_tasklock.operations.values import Actor
from tests.support.admin_pages import Reader, page_of, table, words
from tests.support.messages import message, park
from tests.support.redis_server import free_port
from tests.support.sweeping import dead_holder, hold

pytest_plugins = ["tests.support.admin_fixtures"]
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("admin_settings", "locks")]

PARKED, AUDIT, SWEEPS = (f"/admin/tasklock/{model}/" for model in ("parkedmessage", "auditentry", "sweepentry"))
SWEEP = f"{SWEEPS}add/"
MARKUP = "<script>alert('1')</script>&<b>\"x\"</b>"


@pytest.fixture
def store_down(settings: Any) -> str:
    """Where it would be: what must not be told."""
    port = str(free_port())
    settings.TASKLOCK = {**settings.TASKLOCK, "LOCATION": f"redis://127.0.0.1:{port}/0"}
    return port


# Parked messages


@pytest.fixture
def actor(visitor: Any) -> Client:
    return visitor("parked_operator")


def shown(client: Client, **query: Any) -> list[dict[str, str]]:
    """The lines of the page, from top to bottom."""
    return table(client.get(PARKED, query).text)


def ids(client: Client, **query: Any) -> list[str]:
    """The messages on the page, from top to bottom."""
    return [line["message_task"].rpartition("[")[2].rstrip("]") for line in shown(client, **query)]


def page_of_message(number: int) -> str:
    return f"{PARKED}{ParkedMessage.objects.get(number=number).pk}/change/"


def why(client: Client, number: int) -> str:
    """What the list says of a message; its own page says the same."""
    [said] = [line["why"] for line in shown(client, q=f"id-{number}") if f"[id-{number}]" in line["message_task"]]
    assert said.partition(" s ")[2] in words(client.get(page_of_message(number)).text)
    return said


def act(client: Client, do: str, *numbers: int, **more: str) -> Any:
    """Choose an action of the list for these messages."""
    chosen = [ParkedMessage.objects.get(number=number).pk for number in numbers]
    data = {"action": f"{do}_parked", "_selected_action": chosen, "index": "0", "reason": "stuck", **more}
    return client.post(PARKED, data, follow=True)


def confirm(client: Client, page: Any) -> Any:
    """Send the form of a page that asks whether it is meant."""
    data: dict[str, list[str]] = {}
    for tag, attrs in Reader(page.text).elements:
        if tag == "input" and attrs.get("type") == "hidden":
            data.setdefault(str(attrs["name"]), []).append(str(attrs["value"]))
    return client.post(PARKED, data, follow=True)


class TestWhyAMessageWaits:
    """A sentence for every thing that it can wait for."""

    def test_its_lock_is_held(self, actor: Client, take: Any) -> None:
        take("video:1")
        park(5)
        park(9)
        assert "held by worker-1:42 (videos.process[id-1])" in why(actor, 5)
        assert why(actor, 5).endswith("It is the next one.")
        assert why(actor, 9).endswith("1 message is before it.")
        take("video:2")
        park(5, "video:2", task_id="id-2", mode="coalesce")
        park(7, "video:2", mode="coalesce")
        assert "the newest message runs" in why(actor, 7)

    def test_its_lock_is_free(self, actor: Client) -> None:
        park(5)
        assert "it is its turn: a worker puts it back within seconds" in why(actor, 5)
        ParkedMessage.objects.update(state="promoted")
        park(9)
        assert "videos.process[id-5] is on its way to take it. 1 message is before it." in why(actor, 9)
        assert "no worker has taken it yet." in why(actor, 5)
        assert "in a while" not in why(actor, 5)
        park(11, "video:2", state="promoted", ago=60)
        assert "it is put back again in a while" in why(actor, 11)

    def test_one_that_was_published_before_has_not_arrived(self, actor: Client) -> None:
        get_backend().next_number("video:1", "the first")
        number = get_backend().next_number("video:1", "the second")
        park(number)
        assert "It waits for a message that was published before it and has not arrived yet." in why(actor, number)

    def test_no_worker_takes_it(self, actor: Client, capsys: Any) -> None:
        """The command says the same."""
        park(5, state="dead", problem="there is no such task")
        park(9, "video:2", attempts=3)
        assert why(actor, 5) == "No worker takes it: there is no such task"
        assert "It was put back 3 times, and no worker took it." in why(actor, 9)
        shown = [why(actor, number) for number in (5, 9)]
        call_command("parked")
        assert [line.partition(" s: ")[2] for line in capsys.readouterr().out.splitlines()] == shown
        call_command("parked", "--json")
        assert [" ".join(one["why"]) for one in json.loads(capsys.readouterr().out)["messages"]] == shown

    def test_the_store_is_down(self, actor: Client, store_down: str) -> None:
        """The table is shown all the same; what they wait for is not known, and that is said."""
        park(1)
        assert "The lock store cannot be reached" in why(actor, 1)
        assert store_down not in actor.get(PARKED).text
        assert "1 message was left as it was" in words(act(actor, "publish", 1).text)
        assert AuditEntry.objects.count() == 0


class TestMessages:
    def test_filters_and_search(self, actor: Client) -> None:
        park(1, "video:1")
        park(2, "video:12", task="videos.other")
        park(3, "audio:1", state="dead", problem="x")
        assert ids(actor) == ["id-1", "id-2", "id-3"]
        assert ids(actor, o="-0") == ids(actor), "what cannot be sorted by is left out"
        assert ids(actor, state="dead") == ["id-3"]
        assert ids(actor, q="video:1") == ["id-1"], "the whole name of a lock"
        assert ids(actor, q="id-2") == ids(actor, q="other") == ["id-2"]
        assert ids(actor, q="VIDEO:") == ["id-1", "id-2"]
        assert ids(actor, q="video:", state="dead") == []
        text = words(actor.get(PARKED).text)
        assert "parked (2)" in text
        assert "dead (1)" in text

    def test_what_is_confirmed_is_what_is_done(self, actor: Client) -> None:
        """One that has gone meanwhile is left out; the others are discarded, with a trail that says why."""
        for number in (1, 2, 3, 4):
            park(number)
        page = act(actor, "discard", 1, 2, 4, reason="a bad release")
        assert "Discard 3 messages?" in words(page.text)
        assert ParkedMessage.objects.count() == 4
        ParkedMessage.objects.filter(number=4).delete()
        assert "2 messages: done." in words(confirm(actor, page).text)
        assert ids(actor) == ["id-3"]
        assert {(one.action, one.name, one.actor, one.reason) for one in AuditEntry.objects.all()} == {
            ("discard", "video:1", "parked_operator", "a bad release")
        }

    def test_all_that_are_filtered(self, actor: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        """As many as one request can take on; the page of the confirmation has those that are meant, and no others."""
        monkeypatch.setattr(tables, "MAX_AT_ONCE", 5)
        ParkedMessage.objects.bulk_create(message(number, state="dead") for number in range(1, 9))
        page = act(actor, "discard", 1, select_across="1")
        assert "Discard 5 messages?" in words(page.text)
        assert "5 messages: done." in words(confirm(actor, page).text)
        assert ParkedMessage.objects.count() == 3

    def test_publishing_what_is_behind_a_held_lock_is_refused(self, actor: Client) -> None:
        park(1)
        with TaskLock("video:1", lease=None):
            assert "Message id-1: not done: its lock is held" in words(act(actor, "publish", 1).text)
        assert ParkedMessage.objects.get().state == "parked"
        assert AuditEntry.objects.count() == 0


# The audit trail


def entry(number: int, *, days: float = 0, **values: Any) -> AuditEntry:
    """What somebody did so many days ago."""
    known = {"actor": f"user{number}", "action": "release", "name": f"video:{number}", "reason": "", "outcome": "done"}
    known |= values
    at = timezone.now() - timedelta(days=days)
    return AuditEntry.objects.create(at=at, key=key_of(known["name"]), **known)


class TestAudit:
    @pytest.fixture
    def auditor(self, visitor: Any) -> Client:
        return visitor("auditor")

    @staticmethod
    def shown(client: Client, **query: Any) -> list[str]:
        """The names on the page, from top to bottom."""
        return [line["subject"] for line in table(client.get(AUDIT, query).text)]

    def test_every_filter_narrows(self, auditor: Client) -> None:
        """Who, what, when, name; a whole name first, then a part of one."""
        entry(1, days=3)
        entry(2, days=2, actor="Ann", action="ask")
        entry(21, days=1, actor="joanna")
        entry(3, action="reset_limit", name="tavily")
        shown = self.shown
        assert shown(auditor) == ["tavily", "video:21", "video:2", "video:1"]
        assert shown(auditor, q="ANN") == ["video:21", "video:2"]
        assert shown(auditor, action="ask") == ["video:2"]
        assert shown(auditor, q="video:2") == ["video:2"], "the whole name"
        assert shown(auditor, q="deo:2") == ["video:21", "video:2"]
        since, before = (f"{timezone.now() - timedelta(days=days):%Y-%m-%dT%H:%MZ}" for days in (2.5, 1.5))
        assert shown(auditor, at__gte=since) == ["tavily", "video:21", "video:2"]
        assert shown(auditor, at__gte=since, at__lt=before, q="ann", action="ask") == ["video:2"]
        assert auditor.get(AUDIT, {"at__gte": "yesterday"}).headers["Location"].endswith("?e=1")
        with TaskLock("视频:42"):
            operations.ask_release("视频:42", by=Actor("Li"))
        assert shown(auditor, q="频:4") == ["视频:42"], "as it was called, whatever the column can hold"

    def test_a_file(self, auditor: Client, django_assert_max_num_queries: Any) -> None:
        """All that is listed, as filtered; formulas of spreadsheets are made harmless."""

        def download(query: str = "") -> list[list[str]]:
            data = {"action": "as_csv", "select_across": "1", "index": "0", "_selected_action": "0"}
            answer: Any = auditor.post(AUDIT + query, data)
            assert answer["Content-Type"].startswith("text/csv")
            return list(csv.reader(io.StringIO(b"".join(answer.streaming_content).decode())))

        now = timezone.now()
        AuditEntry.objects.bulk_create(
            AuditEntry(at=now, actor="a", action="release", key="", name=f"n{number}", reason="=HYPERLINK(1)")
            for number in range(1100)
        )
        entry(1, reason='says "no",\nand more', actor="编辑")
        with django_assert_max_num_queries(10):
            rows = download()
        assert rows[0] == ["at", "actor", "action", "name", "reason", "outcome"]
        assert rows[1][1:] == ["编辑", "release", "video:1", 'says "no",\nand more', "done"]
        assert datetime.fromisoformat(rows[1][0]).tzinfo is not None
        assert len(rows) == 1102
        assert rows[2][4] == "'=HYPERLINK(1)"
        assert [row[3] for row in download("?q=video:1")] == ["name", "video:1"]

    def test_names_lead_to_their_pages_for_those_who_may_see_them(self, visitor: Any) -> None:
        entry(1)
        entry(2, action="change_limit", name="tavily")
        links = (f'href="{page_of("video:1")}"', 'href="/admin/tasklock/ratelimit/tavily/change/"')
        for who, linked in (("root", True), ("auditor", False)):
            text = visitor(who).get(AUDIT).text
            assert [link in text for link in links] == [linked] * 2


def test_texts_are_data(visitor: Any) -> None:
    client = visitor("root")
    park(1, MARKUP, task=MARKUP, task_id=MARKUP, problem=MARKUP, state="dead")
    made = entry(1, name=MARKUP, reason=MARKUP, outcome=MARKUP, actor=MARKUP)
    pages = [client.get(url) for url in (PARKED, page_of_message(1), AUDIT, f"{AUDIT}{made.pk}/change/")]
    for page in (*pages, act(client, "discard", 1, reason=MARKUP)):
        assert MARKUP not in page.text
        assert Reader(page.text).refused() == []


# The sweep


class TestSweep:
    @pytest.fixture(autouse=True)
    def _without_sleep(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Nobody acts between the two looks here."""
        monkeypatch.setattr(stream, "sleep", lambda pause: None)

    def test_it_says_what_it_did(self, operator: Client) -> None:
        """By class, one by one, who started it; in the audit trail, too."""
        hold("a", dead_holder())
        hold("b", dead_holder())
        answer = operator.post(SWEEP, {"begins": "a"}, follow=True)
        text = words(answer.text)
        assert "1 thing was repaired." in text
        assert "locks whose holder's process is dead: 1 found, 1 repaired" in text
        assert Reader(answer.text).refused() == []
        assert get_backend().get("b") is not None
        assert AuditEntry.objects.get().actor == "operator"
        assert operations.last_sweep_age() is None, "it was confined to some names"
        operator.post(SWEEP, {})
        assert "The last complete sweep was 0 s ago." in words(operator.get(SWEEP).text)
        assert [(line["actor"], line["right"], line["prefix"]) for line in table(operator.get(SWEEPS).text)] == [
            ("operator", "1", "-"),
            ("operator", "1", "prefix=a"),
        ]

    def test_only_looking_changes_nothing_and_is_no_run(self, operator: Client) -> None:
        hold("a", dead_holder())
        text = words(operator.post(SWEEP, {"dry_run": "on"}).text)
        assert "Nothing was changed" in text
        assert "would be repaired" in text
        assert get_backend().get("a") is not None
        assert operations.sweep_runs() == []

    def test_one_that_broke_off_is_remembered_as_that(self, operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        def down(*args: Any) -> None:
            raise BackendUnavailable("it is gone")

        monkeypatch.setattr(sys.modules["django_tasklock.operations.sweep"], "LockSweep", down)
        with pytest.raises(BackendUnavailable):
            operations.sweep(by=Actor("beat"))
        [run] = operations.sweep_runs()
        assert (run.actor, run.problem) == ("beat", "the store could not be asked: it is gone")
        assert operations.last_sweep_age() is None
        assert "the store could not be asked: it is gone" in words(operator.get(f"{SWEEPS}{run.number}/change/").text)

    def test_it_does_without_its_table(self, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
        """A deploy whose migrations have not run yet."""

        def missing(*args: Any, **options: Any) -> None:
            raise DatabaseError("no such table")

        monkeypatch.setattr("django.db.models.query.QuerySet.create", missing)
        hold("a", dead_holder())
        assert operations.sweep().swept == 1
        assert "could not be recorded" in caplog.text

    def test_no_more_than_the_last_runs_are_kept(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(runs, "MAX_RUNS", 3)
        for number in range(5):
            operations.sweep(by=Actor(f"beat {number}"))
        assert SweepEntry.objects.count() == 3
        assert [run.actor for run in operations.sweep_runs()] == ["beat 4", "beat 3", "beat 2"]

    def test_the_store_is_down(self, operator: Client, store_down: str) -> None:
        """The runs are in the database, and shown; a sweep says that it broke off."""
        assert operator.get(SWEEPS).status_code == 200
        text = words(operator.post(SWEEP, {}, follow=True).text)
        assert "The lock store cannot be reached: the sweep broke off." in text
        assert [bool(line["problem"]) for line in table(operator.get(SWEEPS).text)] == [True]
