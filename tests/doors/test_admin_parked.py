"""Parked messages in the admin, over all locks: who may do what, why each waits, paging, and every act."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.test import Client

from django_tasklock import TaskLock
from django_tasklock.admin.labels import parked_labels
from django_tasklock.backends import get_backend
from django_tasklock.backends.database.names import in_ascii, key_of
from django_tasklock.celery.parking import rows
from django_tasklock.locks.holder import holder_json
from django_tasklock.models import AuditEntry, ParkedMessage
from django_tasklock.operations.parked.listing import STATES
from tests.support.admin_pages import Reader, page_of, words
from tests.support.redis_server import free_port

pytest_plugins = ["tests.support.admin_fixtures"]
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("admin_settings", "locks")]

LIST = "/admin/tasklock/parkedmessage/"
ACT = f"{LIST}act/"
KINDS = ("anonymous", "nobody", "staff", "operator", "parked_viewer", "parked_operator", "root")
MARKUP = "<script>alert('1')</script>&<b>\"x\"</b>"


def message(number: int, name: str = "video:1", *, ago: float = 0, **values: Any) -> ParkedMessage:
    """A row that waits for a lock."""
    now = int((time.time() - ago) * 1000)
    known: dict[str, Any] = {"mode": "queue", "state": "parked", "task": "videos.process", "task_id": f"id-{number}"}
    known |= {"parked_at": now, "changed_at": now, "message": json.dumps({"name": name}), **values}
    return ParkedMessage(key=key_of(name), name=name, ticket=number, **known)


def test_every_state_has_a_word() -> None:
    kept = {rows.PARKED, rows.PROMOTED, rows.RUNNING, rows.ENDED, rows.SUPERSEDED, rows.DEAD}
    assert kept == set(STATES) == set(parked_labels())


def park(number: int, name: str = "video:1", **values: Any) -> ParkedMessage:
    row = message(number, name, **values)
    row.save()
    return row


def park_as_stored(name: str) -> None:
    """As a worker parks it, on a database that knows no such letters."""
    row = message(1, name)
    row.name = in_ascii(name)
    row.save()


@pytest.fixture
def actor(visitor: Any) -> Client:
    return visitor("parked_operator")


def ids(client: Client, **query: Any) -> list[str]:
    """The messages on the page, from top to bottom."""
    return [row.view.info.task_id for row in client.get(LIST, query).context["rows"]]


def why(client: Client, number: int) -> str:
    """What the page of a message says."""
    return " ".join(client.get(f"{LIST}id-{number}/change/").context["row"].view.why)


def confirmed(client: Client, do: str, *numbers: int, reason: str = "stuck") -> str:
    """Do it, and what is said then."""
    data = {"do": do, "message": [f"id-{number}" for number in numbers], "confirm": "yes", "reason": reason}
    return words(client.post(ACT, data, follow=True).text)


class TestWhoMayDoWhat:
    @pytest.mark.parametrize("kind", KINDS)
    def test_matrix(self, visitor: Any, kind: str) -> None:
        park(1, state="dead", problem="no")
        client = visitor(kind)
        login, looks = kind in ("anonymous", "nobody"), kind in ("parked_viewer", "parked_operator", "root")
        acts = kind in ("parked_operator", "root")
        for url in (LIST, f"{LIST}?fragment=1", f"{LIST}id-1/change/"):
            assert client.get(url).status_code == (302 if login else 200 if looks else 403), url
            assert client.post(url).status_code == (302 if login else 405 if looks else 403), url
        asked = f"{ACT}?do=discard&message=id-1"
        assert client.get(asked).status_code == (302 if login else 200 if acts else 403)
        assert client.get(f"{LIST}id-1/delete/").status_code == (302 if login or acts else 403)
        assert client.get(f"{LIST}add/").status_code == (302 if login else 403)
        client.get(f"{asked}&confirm=yes&reason=x")
        client.post(ACT, {"do": "discard", "message": "id-1"})
        client.post(ACT, {"do": "discard", "message": "id-1", "reason": "x"})
        client.post(ACT, {"do": "discard", "message": "id-1", "confirm": "yes", "reason": ""})
        assert ParkedMessage.objects.count() == 1, "neither a GET, nor without a confirmation, nor without a reason"
        client.post(ACT, {"do": "discard", "message": "id-1", "confirm": "yes", "reason": "x"})
        assert ParkedMessage.objects.count() == (0 if acts else 1)

    def test_a_post_without_the_csrf_token_is_refused(self, visitor: Any) -> None:
        park(1)
        visitor("root")
        strict = Client(enforce_csrf_checks=True)
        strict.force_login(User.objects.get(username="root"))
        data = {"do": "discard", "message": "id-1", "confirm": "yes", "reason": "x"}
        assert strict.post(ACT, data).status_code == 403
        assert ParkedMessage.objects.count() == 1

    def test_buttons_are_shown_to_those_who_may_press_them(self, visitor: Any) -> None:
        park(1)
        for kind, may in (("parked_viewer", False), ("parked_operator", True)):
            client = visitor(kind)
            assert ('id="tasklock-discard-selected"' in client.get(LIST).text) is may
            assert ('id="tasklock-publish"' in client.get(f"{LIST}id-1/change/").text) is may

    def test_locks_are_links_for_those_who_may_see_them(self, visitor: Any) -> None:
        park(1)
        for kind, may in (("parked_viewer", False), ("parked_operator", True)):
            assert (f'href="{page_of("video:1")}"' in visitor(kind).get(LIST).text) is may


def test_a_part_of_a_name_that_the_column_cannot_hold(actor: Client) -> None:
    park_as_stored("account:电影")
    assert ids(actor, q="电") == ids(actor, q="account:电影") == ["id-1"]
    assert ids(actor, q="影:") == []


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
        park(get_backend().next_number("video:1", "the second"), task_id="id-2")
        assert "It waits for a message that was published before it and has not arrived yet." in why(actor, 2)

    def test_a_newer_one_takes_its_place(self, actor: Client, take: Any) -> None:
        take("video:1")
        park(5, mode="coalesce")
        park(9, mode="coalesce")
        assert "the newest message runs" in why(actor, 9)

    def test_it_runs(self, actor: Client) -> None:
        park(5, state="running", holder=holder_json())
        assert "has run it for 0 s. It is kept in case that process dies." in why(actor, 5)

    def test_the_process_that_ran_it_has_ended(self, actor: Client) -> None:
        gone = {**json.loads(holder_json()), "boot": "other", "pid": 2**22 + 1}
        park(5, state="running", holder=json.dumps(gone))
        park(9)
        assert "which ran it, has ended" in why(actor, 5)
        assert "videos.process[id-5] ran before it" in why(actor, 9)

    def test_no_worker_takes_it(self, actor: Client) -> None:
        park(5, state="dead", problem="there is no such task")
        park(9, "video:2", attempts=3)
        assert why(actor, 5) == "No worker takes it: there is no such task"
        assert "It was put back 3 times, and no worker took it." in why(actor, 9)

    def test_the_command_says_the_same(self, actor: Client, take: Any, capsys: Any) -> None:
        take("video:1")
        park(5)
        park(9, state="dead", problem="there is no such task")
        call_command("parked")
        told = capsys.readouterr().out.splitlines()
        assert [line.partition(" s: ")[2] for line in told] == [why(actor, 5), why(actor, 9)]
        call_command("parked", "--json")
        assert [" ".join(one["why"]) for one in json.loads(capsys.readouterr().out)["messages"]] == [
            why(actor, 5),
            why(actor, 9),
        ]

    def test_over(self, actor: Client) -> None:
        park(5, state="superseded")
        park(9, state="ended")
        assert "A newer message has replaced it" in why(actor, 5)
        assert "Its run is over" in why(actor, 9)


class TestThePages:
    def test_filters_and_search(self, actor: Client) -> None:
        park(1, "video:1")
        park(2, "video:12", task="videos.other")
        park(3, "audio:1", state="dead", problem="x")
        assert ids(actor) == ["id-1", "id-2", "id-3"]
        assert ids(actor, o="-age") == ["id-3", "id-2", "id-1"]
        assert ids(actor, state="dead") == ["id-3"]
        assert ids(actor, state="wrong") == ["id-1", "id-2", "id-3"]
        assert ids(actor, q="video:1") == ["id-1"], "the whole name of a lock"
        assert ids(actor, q="id-2") == ["id-2"]
        assert ids(actor, q="VIDEO:") == ["id-1", "id-2"]
        assert ids(actor, q="other") == ["id-2"]
        assert ids(actor, q="video:", state="dead") == []
        text = words(actor.get(LIST).text)
        assert "all 3 parked 2" in text
        assert "dead 1" in text
        assert "No message matches." in words(actor.get(LIST, {"q": "nothing"}).text)
        assert "No message is in this state." in words(actor.get(LIST, {"state": "running"}).text)

    def test_nothing_is_parked(self, actor: Client) -> None:
        assert "No message is parked." in words(actor.get(LIST).text)
        assert actor.get(f"{LIST}nothing/change/").status_code == 404

    def test_ten_thousand_in_one_line(self, actor: Client, take: Any, django_assert_max_num_queries: Any) -> None:
        """Each page costs the same few statements, four of them Django's login, and one question to the store;
        following the links meets each message once, whatever goes and comes meanwhile."""
        take("video:1")
        ParkedMessage.objects.bulk_create((message(number) for number in range(1, 10_001)), batch_size=1000)
        page, seen, url = None, [], f"{LIST}?q=video:1"
        for _ in range(4):
            with django_assert_max_num_queries(10):
                page = actor.get(url)
            seen += [row.view.info.number for row in page.context["rows"]]
            ParkedMessage.objects.filter(ticket=seen[-3]).delete()
            url = LIST + page.context["next"]
        assert seen == list(range(1, 201))
        lock = words(actor.get(page_of("video:1")).text)
        assert "9996 messages are parked behind it." in lock
        assert "9896 more are parked behind them." in lock
        last = actor.get(LIST, {"after": ParkedMessage.objects.get(ticket=9990).pk})
        assert [row.view.info.number for row in last.context["rows"]] == list(range(9991, 10_001))
        assert last.context["next"] == ""
        assert "9995 messages are before it." in words(last.text), "of 9999 four have gone"

    def test_the_store_is_down(self, actor: Client, settings: Any) -> None:
        """The table is shown all the same; what they wait for is not known, and that is said."""
        park(1)
        port = free_port()
        settings.TASKLOCK = {**settings.TASKLOCK, "LOCATION": f"redis://127.0.0.1:{port}/0"}
        answer = actor.get(LIST)
        assert answer.status_code == 200
        assert "it is not known what these messages wait for" in words(answer.text)
        assert "id-1" in answer.text
        assert str(port) not in answer.text
        assert "cannot be reached" in why(actor, 1)
        assert "1 message was left as it was" in confirmed(actor, "publish", 1)
        assert AuditEntry.objects.count() == 0

    def test_texts_are_data(self, actor: Client) -> None:
        park(1, MARKUP, task=MARKUP, task_id=MARKUP, problem=MARKUP, state="dead")
        for url in (LIST, actor.get(LIST).context["rows"][0].url):
            text = actor.get(url).text
            assert MARKUP not in text
            assert Reader(text).refused() == []

    def test_all_links_stay_on_the_site(self, visitor: Any) -> None:
        park(1)
        ours = "/operators/tasklock/parkedmessage/"
        root = visitor("root")
        for url in (ours, f"{ours}id-1/change/", f"{ours}act/?do=discard&message=id-1"):
            text = root.get(url).text
            assert ours in text
            assert 'href="/admin/' not in text, url

    def test_the_fragment_is_a_part_of_the_page(self, actor: Client) -> None:
        park(1)
        for url in (LIST, f"{LIST}id-1/change/"):
            fragment = actor.get(url, {"fragment": "1"}).text
            assert fragment.lstrip().startswith('<div id="tasklock-')
            assert "<html" not in fragment


class TestActs:
    def test_what_is_confirmed_is_what_is_done(self, actor: Client) -> None:
        """One that has gone meanwhile is named; the others are discarded, with a trail that says why."""
        park(1)
        park(2)
        park(3)
        page = actor.post(ACT, {"do": "discard", "message": ["id-1", "id-2", "id-2", "id-9"]})
        text = words(page.text)
        assert "Discard 2 messages?" in text
        assert "These are not parked any more: their runs are over. id-9" in text
        text = confirmed(actor, "discard", 1, 2, 9, reason="a bad release")
        assert "2 messages: done." in text
        assert "Message id-9: not done: there is no such message." in text
        assert ids(actor) == ["id-3"]
        assert {(one.action, one.name, one.actor, one.reason) for one in AuditEntry.objects.all()} == {
            ("discard", "video:1", "parked_operator", "a bad release")
        }

    def test_nothing_was_chosen(self, actor: Client) -> None:
        for data in ({"do": "discard"}, {"message": "id-1"}, {"do": "explode", "message": "id-1"}):
            assert "No message was selected." in words(actor.post(ACT, data, follow=True).text)

    def test_publishing_what_is_behind_a_held_lock_is_refused(self, actor: Client) -> None:
        park(1)
        with TaskLock("video:1", lease=None):
            assert "not done: its lock is held" in confirmed(actor, "publish", 1)
        assert ParkedMessage.objects.get().state == "parked"
        assert AuditEntry.objects.count() == 0

    def test_requeueing_one_that_is_not_dead_is_refused(self, actor: Client) -> None:
        park(1)
        assert "not done: it is not dead but parked" in confirmed(actor, "requeue", 1)
