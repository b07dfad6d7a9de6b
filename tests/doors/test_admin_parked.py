"""Parked messages in the admin, over all locks: why each waits, what narrows the list, and what comes of an act."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client

from django_tasklock import TaskLock
from django_tasklock.admin import tables
from django_tasklock.backends import get_backend
from django_tasklock.backends.database.names import key_of
from django_tasklock.models import AuditEntry, ParkedMessage
from tests.support.admin_pages import Reader, table, words
from tests.support.redis_server import free_port

pytest_plugins = ["tests.support.admin_fixtures"]
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("admin_settings", "locks")]

LIST = "/admin/tasklock/parkedmessage/"
MARKUP = "<script>alert('1')</script>&<b>\"x\"</b>"


def message(number: int, name: str = "video:1", *, ago: float = 0, **values: Any) -> ParkedMessage:
    """A row that waits for a lock."""
    now = int((time.time() - ago) * 1000)
    known: dict[str, Any] = {"mode": "queue", "state": "parked", "task": "videos.process", "task_id": f"id-{number}"}
    known |= {"parked_at": now, "changed_at": now, "message": json.dumps({"name": name}), **values}
    return ParkedMessage(key=key_of(name), name=name, number=number, **known)


def park(number: int, name: str = "video:1", **values: Any) -> ParkedMessage:
    row = message(number, name, **values)
    row.save()
    return row


@pytest.fixture
def actor(visitor: Any) -> Client:
    return visitor("parked_operator")


def shown(client: Client, **query: Any) -> list[dict[str, str]]:
    """The lines of the page, from top to bottom."""
    return table(client.get(LIST, query).text)


def ids(client: Client, **query: Any) -> list[str]:
    """The messages on the page, from top to bottom."""
    return [line["message_task"].rpartition("[")[2].rstrip("]") for line in shown(client, **query)]


def page_of_message(number: int) -> str:
    return f"{LIST}{ParkedMessage.objects.get(number=number).pk}/change/"


def why(client: Client, number: int) -> str:
    """What the list says of a message; its own page says the same."""
    [said] = [line["why"] for line in shown(client, q=f"id-{number}") if f"[id-{number}]" in line["message_task"]]
    assert said.partition(" s ")[2] in words(client.get(page_of_message(number)).text)
    return said


def act(client: Client, do: str, *numbers: int, **more: str) -> Any:
    """Choose an action of the list for these messages."""
    chosen = [ParkedMessage.objects.get(number=number).pk for number in numbers]
    data = {"action": f"{do}_parked", "_selected_action": chosen, "index": "0", "reason": "stuck", **more}
    return client.post(LIST, data, follow=True)


def confirm(client: Client, page: Any) -> Any:
    """Send the form of a page that asks whether it is meant."""
    data: dict[str, list[str]] = {}
    for tag, attrs in Reader(page.text).elements:
        if tag == "input" and attrs.get("type") == "hidden":
            data.setdefault(str(attrs["name"]), []).append(str(attrs["value"]))
    return client.post(LIST, data, follow=True)


class TestWhy:
    """A sentence for every thing that a message can wait for."""

    def test_its_lock_is_held(self, actor: Client, take: Any) -> None:
        take("video:1")
        park(5)
        park(9)
        assert (
            why(actor, 5)
            == "Its lock is held by worker-1:42 (videos.process[id-1]), for 0 s so far. It is the next one."
        )
        assert "held by worker-1:42" in why(actor, 9)
        assert why(actor, 9).endswith("1 message is before it.")

    def test_it_is_its_turn_and_no_worker_runs(self, actor: Client) -> None:
        park(5)
        assert "it is its turn: a worker puts it back within seconds" in why(actor, 5)

    def test_another_one_is_on_its_way(self, actor: Client) -> None:
        park(5, state="promoted")
        park(9)
        assert (
            why(actor, 9)
            == "Its lock is free, and videos.process[id-5] is on its way to take it. 1 message is before it."
        )
        assert "no worker has taken it yet." in why(actor, 5)
        assert "in a while" not in why(actor, 5)
        park(11, "video:2", state="promoted", ago=60)
        assert "it is put back again in a while" in why(actor, 11)

    def test_one_that_was_published_before_has_not_arrived(self, actor: Client) -> None:
        get_backend().next_number("video:1", "the first")
        number = get_backend().next_number("video:1", "the second")
        park(number)
        assert "It waits for a message that was published before it and has not arrived yet." in why(actor, number)

    def test_a_newer_one_takes_its_place(self, actor: Client, take: Any) -> None:
        take("video:1")
        park(5, mode="coalesce")
        park(9, mode="coalesce")
        assert "the newest message runs" in why(actor, 9)

    def test_no_worker_takes_it(self, actor: Client) -> None:
        park(5, state="dead", problem="there is no such task")
        park(9, "video:2", attempts=3)
        assert why(actor, 5) == "No worker takes it: there is no such task"
        assert "It was put back 3 times, and no worker took it." in why(actor, 9)

    def test_the_command_says_the_same(self, actor: Client, take: Any, capsys: Any) -> None:
        take("video:1")
        park(5)
        park(9, state="dead", problem="there is no such task")

        def same(line: str) -> str:
            return re.sub(r"for \d+ s so far", "for some time", line)

        shown = [same(why(actor, number)) for number in (5, 9)]
        call_command("parked")
        assert [same(line.partition(" s: ")[2]) for line in capsys.readouterr().out.splitlines()] == shown
        call_command("parked", "--json")
        assert [same(" ".join(one["why"])) for one in json.loads(capsys.readouterr().out)["messages"]] == shown


class TestThePages:
    def test_filters_and_search(self, actor: Client) -> None:
        park(1, "video:1")
        park(2, "video:12", task="videos.other")
        park(3, "audio:1", state="dead", problem="x")
        assert ids(actor) == ["id-1", "id-2", "id-3"]
        assert ids(actor, o="-0") == ids(actor), "what cannot be sorted by is left out"
        assert ids(actor, state="dead") == ["id-3"]
        assert ids(actor, state="wrong") == ["id-1", "id-2", "id-3"]
        assert ids(actor, q="video:1") == ["id-1"], "the whole name of a lock"
        assert ids(actor, q="id-2") == ["id-2"]
        assert ids(actor, q="VIDEO:") == ["id-1", "id-2"]
        assert ids(actor, q="other") == ["id-2"]
        assert ids(actor, q="video:", state="dead") == []
        text = words(actor.get(LIST).text)
        assert "parked (2)" in text
        assert "dead (1)" in text

    def test_the_store_is_down(self, actor: Client, settings: Any) -> None:
        """The table is shown all the same; what they wait for is not known, and that is said."""
        park(1)
        port = free_port()
        settings.TASKLOCK = {**settings.TASKLOCK, "LOCATION": f"redis://127.0.0.1:{port}/0"}
        assert "The lock store cannot be reached" in why(actor, 1)
        assert str(port) not in actor.get(LIST).text
        assert "1 message was left as it was" in words(act(actor, "publish", 1).text)
        assert AuditEntry.objects.count() == 0

    def test_texts_are_data(self, actor: Client) -> None:
        park(1, MARKUP, task=MARKUP, task_id=MARKUP, problem=MARKUP, state="dead")
        for page in (actor.get(LIST), actor.get(page_of_message(1)), act(actor, "discard", 1, reason=MARKUP)):
            assert MARKUP not in page.text
            assert Reader(page.text).refused() == []


class TestActs:
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
