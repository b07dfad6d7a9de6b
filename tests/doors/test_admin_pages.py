"""What the admin's pages show: of one lock, of many, of none, and when the store cannot say."""

from __future__ import annotations

import json
import re
from html import unescape
from typing import Any

import pytest
import redis
from django.template import context_processors
from django.test import Client

from django_tasklock import StateGuard, TaskLock, model_lock, operations
from django_tasklock.admin import LockAdmin
from django_tasklock.backends import get_backend
from django_tasklock.operations import Actor
from tests.support.admin_pages import LIST, Reader, page_of, token_of, words
from tests.support.messages import park
from tests.support.redis_server import free_port
from tests.support.stores import an_ask
from tests.support.sweeping import dead_holder
from tests.testapp.models import Video

pytest_plugins = ["tests.support.admin_fixtures"]
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("admin_settings")]

MARKUP = "<script>alert('1')</script>&<b>\"x\"</b>"


GUARD = StateGuard(field="status", claim_from=["uploading"], claim_as="processing")


@model_lock(Video, "pages:{video_id}", guard=GUARD, pk="video_id")
def process(video_id: int) -> None:
    """So that a guard of the model is known."""


def listed(client: Client, query: str = "") -> list[str]:
    """The names in the list, in order."""
    text = client.get(LIST + query).text
    cells = re.findall(r'<th role="rowheader".*?</th>', text, re.DOTALL)
    return [words(cell).strip() for cell in cells]


# The list


def test_states_are_told_in_words_and_counted(operator: Client, take, settings: Any) -> None:
    """Each state, its filter and its count; never by colour alone."""
    take("live")
    take("expiring", ttl=5_000)
    take("orphaned", ttl=1)
    take("unending")
    with redis.Redis.from_url(settings.TASKLOCK["LOCATION"]) as by_hand:
        by_hand.persist("task_lock:unending")
        assert operator.get(page_of("unending")).context["lock"].state == "no_expiry"  # and found out
    take("dead", **json.loads(dead_holder()))
    text = operator.get(f"{LIST}?o=left").text  # by the table: whose holder is dead is found out only then
    assert listed(operator, "?state=orphaned") == ["orphaned"]
    assert listed(operator, "?state=expiring") == ["expiring"]
    assert listed(operator, "?state=dead") == ["dead"]
    assert set(listed(operator)) == {"live", "expiring", "unending", "dead"}
    assert "◐ expiring" in words(text)
    assert "○ orphaned" in words(operator.get(f"{LIST}?state=orphaned").text)
    assert 'id="tasklock-release-selected"' not in operator.get(f"{LIST}?state=orphaned").text
    assert 'id="tasklock-release-selected"' in operator.get(f"{LIST}?state=dead").text
    counts = words(re.search(r'<nav id="tasklock-states".*?</nav>', text, re.DOTALL)[0])
    for count in ("all live 4", "expiring 1", "orphaned 1", "holder has ended 1"):
        assert count in counts
    assert re.search(
        r'<div class="tasklock-alarming"><dt>Holder has ended</dt><dd><a href="[^"]*\?state=dead">1</a>',
        operator.get(f"{LIST}overview/").text,
    )


def test_pages(operator: Client, take, monkeypatch: pytest.MonkeyPatch) -> None:
    """Following the links visits each lock once; a page beyond the end is the last one."""
    monkeypatch.setattr(LockAdmin, "list_per_page", 3)
    for number in range(8):
        take(f"lock:{number}")
    seen, url = [], ""
    while True:
        text = operator.get(LIST + url).text
        seen += listed(operator, url)
        following = re.search(r'id="tasklock-next" rel="next" href="([^"]*)"', text)
        if following is None:
            break
        url = unescape(following[1])
    assert sorted(seen) == [f"lock:{number}" for number in range(8)]
    assert "7 to 8 of 8 locks" in words(text)
    assert "Page 3 of 3" in words(text)
    assert listed(operator, "?from=3000") == listed(operator, "?from=6")
    assert 'id="tasklock-last"' in operator.get(LIST).text
    assert len(listed(operator, "?q=lock&from=3")) == 3, "a search goes on where it was"


def test_search_filters_and_order(operator: Client, take) -> None:
    """By a part of the name, literally; by the whole name of the task; by who waits. Nonsense is left out."""
    take("video:1", hold=3_000_000)
    take("video:2", hold=1_000_000, task="videos.other")
    take("100%_[*]", hold=2_000_000, task="x")
    assert set(listed(operator, "?q=video")) == {"video:1", "video:2"}
    assert listed(operator, "?q=%25_%5B*") == ["100%_[*]"]
    assert listed(operator, "?q=.*") == []
    assert listed(operator, "?task=videos.other") == ["video:2"]
    assert listed(operator, "?task=videos.othe") == []
    assert listed(operator, "?waiting=1") == []
    assert "No lock matches." in words(operator.get(f"{LIST}?waiting=1").text)
    assert listed(operator, "?o=left") == ["video:2", "100%_[*]", "video:1"]
    assert listed(operator, "?o=-left") == ["video:1", "100%_[*]", "video:2"]
    for query, sorts in (("", ["descending"]), ("?o=-age", ["ascending"])):
        assert re.findall(r'aria-sort="(\w+)"', operator.get(LIST + query).text) == sorts
    for query in ("from=-1", "from=" + "9" * 400, "from=²", "o=x", "state=x", "q=%00"):
        assert operator.get(f"{LIST}?{query}").status_code == 200, query


def test_a_page_of_the_list_costs_the_same_whatever_is_held(
    operator: Client, take, django_assert_max_num_queries: Any
) -> None:
    """No query per row."""
    for number in range(30):
        take(f"lock:{number}", row=f"testapp.video:{number}")
    with django_assert_max_num_queries(5):
        operator.get(LIST)


# One lock


def test_everything_known_of_a_lock(operator: Client, take) -> None:
    """Facts, why it is so, both sides of the row."""
    row = Video.objects.create(status="processing", lock_token=token_of("video:1"), lock_epoch=7)
    known = take("video:1", row=f"testapp.video:{row.pk}")
    text = words(operator.get(page_of("video:1")).text)
    line = words(operator.get(LIST).text)
    for part in ("video:1", "● live", "worker-1:42", "videos.process", "59 min", f"testapp.video:{row.pk}"):
        assert part in line, part
        assert part in text, part
    assert re.search(r"Epoch 7\b", text)
    assert text.count(known) >= 3, "of the lock, and on both sides of the comparison"
    assert "row and lock belong together" in text


@pytest.mark.parametrize("name", ["order:1/x", "../../etc", "..", "_2E", "视频:1", "?q#x", "overview", "a" * 200])
def test_names_find_their_page(operator: Client, take, name: str) -> None:
    """Through the list's link, through looking it up, and through the release."""
    known = take(name)
    link = unescape(re.search(r'class="tasklock-name"><a href="([^"]*)"', operator.get(LIST).text)[1])
    assert operator.get(link).context["detail"].name == name
    assert operator.get(f"{LIST}look-up/", {"name": name})["Location"] == link
    operator.post(link.removesuffix("change/") + "release/", {"fingerprint": known, "reason": "x"})
    assert get_backend().get(name) is None


def test_what_cannot_be_a_name(operator: Client, locks) -> None:
    """404 by address, a sentence where it was typed."""
    for name in ("", "a" * 300, "a\x00b"):
        if name:
            assert operator.get(page_of(name)).status_code == 404
        answer = operator.get(f"{LIST}look-up/", {"name": name}, follow=True)
        assert answer.redirect_chain == [(LIST, 302)]
        assert 'class="warning"' in answer.text


def test_markup_is_shown_as_text(operator: Client, take) -> None:
    """In names, holders, tasks, reasons, rows, refused calls (gold standard 8.42)."""
    known = take(MARKUP, host=MARKUP, task=MARKUP, task_id=MARKUP, row=f"{MARKUP}:{MARKUP}")
    get_backend().acquire(an_ask(MARKUP, holder='{"host": "<script>1", "pid": 1, "task": "<script>2"}'))
    operations.ask_release(MARKUP, by=Actor(MARKUP), reason=MARKUP)
    pages = [
        operator.get(LIST),
        operator.get(LIST, {"q": "script", "task": MARKUP}),
        operator.get(page_of(MARKUP)),
        operator.get(page_of(MARKUP, "release")),
        operator.get(page_of(MARKUP, "ask")),
        operator.post(f"{LIST}release/", {"lock": f"{known} {MARKUP}"}),
        operator.post(f"{LIST}release/", {"lock": f"wrong {MARKUP}"}),
        operator.post(page_of(MARKUP, "release"), {"fingerprint": "wrong", "reason": MARKUP}, follow=True),
    ]
    for page in pages:
        assert page.status_code == 200
        assert "<script>alert" not in page.text
        assert "<script>1" not in page.text
        assert "<b>" not in page.text
        assert Reader(page.text).refused() == []
        assert MARKUP in words(page.text)


def test_no_token_is_ever_shown(operator: Client, take) -> None:
    """Only fingerprints: with a token one could release from anywhere."""
    row = Video.objects.create(status="processing", lock_token="SECRET", lock_epoch=7)
    known = take("a", "SECRET", row=f"testapp.video:{row.pk}")
    assert "The guarded row" in operator.get(page_of("a")).text
    for url in (LIST, page_of("a"), page_of("a", "release"), page_of("a", "ask")):
        assert "SECRET" not in operator.get(url).text, url
    operator.post(page_of("a", "release"), {"fingerprint": known, "reason": "x"})
    assert "SECRET" not in operator.get(page_of("a")).text


# Policy, labels


def test_our_files_carry_the_nonce_where_there_is_one(operator: Client, take, settings: Any) -> None:
    """Django 6 puts it into the context; a policy of nonces alone must do."""
    if not hasattr(context_processors, "csp"):
        pytest.skip("Django 5.2 knows no nonce")
    options = settings.TEMPLATES[0]["OPTIONS"]
    options = {"context_processors": [*options["context_processors"], "django.template.context_processors.csp"]}
    settings.TEMPLATES = [{**settings.TEMPLATES[0], "OPTIONS": options}]
    settings.MIDDLEWARE = ["django.middleware.csp.ContentSecurityPolicyMiddleware", *settings.MIDDLEWARE]
    settings.SECURE_CSP = {"script-src": ["<CSP_NONCE_SENTINEL>"], "style-src": ["<CSP_NONCE_SENTINEL>"]}
    answer = operator.get(LIST)
    [nonce] = re.findall(r"script-src 'nonce-([^']*)'", answer["Content-Security-Policy"])
    ours = [attrs for tag, attrs in Reader(answer.text).elements if "/tasklock/admin." in str(attrs.values())]
    assert len(ours) == 2
    assert all(attrs["nonce"] == nonce for attrs in ours)


# The store


def test_the_store_is_down(visitor: Any, settings: Any) -> None:
    """503 and a sentence; no traceback, nothing of where the store is, and when to try again."""
    port = free_port()
    settings.TASKLOCK = {"LOCATION": f"redis://:hunter2@127.0.0.1:{port}/0"}
    client, limits = visitor("root"), "/admin/tasklock/ratelimit/"
    pages = [LIST, page_of("a"), page_of("a", "release"), page_of("a", "ask"), limits, f"{limits}a/change/"]
    for url in (*pages, f"{limits}a/reset/", f"{limits}a/limit/", f"{limits}a/release/"):
        answer = client.get(url)
        assert (answer.status_code, answer["Retry-After"]) == (503, "10"), url
        assert 'id="tasklock-message"' in answer.text
        assert str(port) not in answer.text
        assert "hunter2" not in answer.text
    data = {"lock": "x a", "reason": "x", "fingerprint": "x", "confirm": "yes"}
    for url in (page_of("a", "release"), page_of("a", "ask")):
        answer = client.post(url, data)
        assert answer.status_code == 503
        assert "look at the lock once the store answers" in answer.text
    for url in (f"{LIST}release/", f"{limits}a/reset/"):
        assert client.post(url, {"lock": "x a", "reason": "x"}).status_code == 503


def test_a_store_that_cannot_list(operator: Client, settings: Any) -> None:
    """A plain cache: why there is no list, and a way to the page of a name."""
    settings.TASKLOCK = {"BACKEND": "django_tasklock.backends.cache.CacheBackend", "LOCATION": "locmem"}
    answer = operator.get(LIST)
    assert answer.status_code == 200
    assert 'id="tasklock-message"' in answer.text
    assert 'id="tasklock-look-up"' in answer.text
    with TaskLock("a", lease=None):
        found = operator.get(f"{LIST}look-up/", {"name": "a"}, follow=True)
        assert found.status_code == 200
        assert found.context["detail"].lock is not None


# Why it is as it is


CASES = ["live", "expiring", "unending", "orphaned", "by hand", "asked", "parked", "free"]


@pytest.mark.parametrize("case", CASES)
def test_the_page_of_a_lock_explains_its_state(operator: Client, take, settings: Any, case: str) -> None:
    """Gold standard 8.46: for every class of state there is a sentence, beside the word for the state."""
    with redis.Redis.from_url(settings.TASKLOCK["LOCATION"]) as by_hand:
        if case == "by hand":
            by_hand.set("task_lock:a", "somebody")
        elif case != "free":
            take("a", ttl={"expiring": 5_000, "orphaned": 1}.get(case, 60_000))
        if case == "unending":
            by_hand.persist("task_lock:a")
    if case == "asked":
        operations.ask_release("a", by=Actor("somebody"), reason="a deploy")
    if case == "parked":
        park(1, "a", task="videos.parked", task_id="id-of-parked")
    page = operator.get(page_of("a")).text
    state, *shown = {
        "live": ["● live", "worker-1:42", "If its holder dies"],
        "expiring": ["◐ expiring", "worker-1:42"],
        "unending": ["∞ no expiry", "It has no expiry"],
        "orphaned": ["○ orphaned", "It is free", "The last hold"],
        "by hand": ["∞ no expiry", "was not written by this library"],
        "asked": ["● live", "was asked", "asked for it", "a deploy"],
        "parked": ["● live", "1 message is parked behind it", "videos.parked", "id-of-parked"],
        "free": ["○ free", "This lock is free."],
    }[case]
    assert state in words(page)
    assert words(re.search(r'id="tasklock-explanation">.*?</div>', page, re.DOTALL)[0]).strip()
    for part in shown:
        assert part in words(page), part
    assert ('id="tasklock-release"' in page) is (case not in ("free", "orphaned"))


def test_a_lock_that_outlived_its_code(operator: Client, take) -> None:
    """Gold standard 8.45: its task and model are gone from the project; it is listed, explained and released."""
    known = take("old:1", task="removed.tasks.thing", row="removed.thing:1")
    assert listed(operator, "?task=removed.tasks.thing") == ["old:1"]
    page = words(operator.get(page_of("old:1")).text)
    assert "removed.thing:1" in page
    assert "this process knows no guard" in page
    operator.post(page_of("old:1", "release"), {"fingerprint": known, "reason": "its code is gone"})
    assert get_backend().get("old:1") is None
