"""Releasing and asking through the admin: whom it hits, whom it must not hit, and what is said."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.messages import get_messages
from django.db import connections
from django.test import Client

from django_tasklock import StateGuard, current_claim, model_lock, operations
from django_tasklock.backends import get_backend
from django_tasklock.exceptions import BackendUnavailable, StaleClaim
from django_tasklock.guards.guard import registered
from django_tasklock.operations import acts
from django_tasklock.types import fingerprint
from tests.support.admin_pages import LIST, acts_on, page_of
from tests.support.guards import elsewhere, only_guards
from tests.testapp.models import Video

pytest_plugins = ["tests.support.admin_fixtures"]
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("admin_settings")]


def said(answer: Any) -> list[tuple[str, str]]:
    """The messages of an answer: level and text."""
    return [(message.level_tag, str(message)) for message in get_messages(answer.wsgi_request)]


def hidden(page: Any, name: str) -> str:
    """What a form would send back for a hidden field."""
    return re.search(rf'name="{name}"[^>]* value="([^"]*)"', page.text)[1]


def test_a_release_is_said_and_in_both_trails_with_who_and_why(operator: Client, take) -> None:
    """The page says who loses it; the LogEntry's link leads to the lock's page."""
    take("a")
    page = operator.get(page_of("a", "release"))
    assert "worker-1:42" in page.text
    answer = acts_on(operator, "a", fingerprint=hidden(page, "fingerprint"), reason="  ")
    assert 'class="errorlist"' in answer.text
    assert acts("a") == []
    answer = acts_on(operator, "a", fingerprint=hidden(answer, "fingerprint"), reason="worker-1 was unplugged")
    assert (answer.status_code, answer["Location"]) == (302, page_of("a"))
    assert said(answer) == [("success", "The lock “a” was released. Its holder goes on running.")]
    assert get_backend().get("a") is None
    [act] = acts("a")
    assert (act.actor, act.action, act.reason) == ("operator", "release", "worker-1 was unplugged")
    [entry] = LogEntry.objects.all()
    assert (entry.user.username, entry.get_admin_url()) == ("operator", page_of("a"))
    assert "worker-1 was unplugged" in entry.get_change_message()
    page = operator.get(page_of("a")).text
    assert "worker-1 was unplugged" in page, "the history of the name is on its page, free or not"


def test_it_changed_hands_between_looking_and_releasing(operator: Client, take) -> None:
    """Gold standard 8.43: the newer holder is never released by a page that showed the older one."""
    shown = take("a", "old")
    page = operator.get(page_of("a", "release"))
    get_backend().remove("a", "old")
    take("a", "new")
    answer = acts_on(operator, "a", fingerprint=hidden(page, "fingerprint"))
    [(level, text)] = said(answer)
    assert level == "warning"
    assert "changed hands" in text
    assert get_backend().get("a").token == "new"
    answer = operator.post(page_of("a", "ask"), {"fingerprint": shown})
    assert "changed hands" in said(answer)[-1][1]
    assert not get_backend().get("a").asked


def test_without_the_fingerprint_no_lock_is_released(operator: Client, take) -> None:
    """A form that was built by hand must not mean "whoever has it"; and it leads nowhere but to our own list."""
    take("a")
    for data in ({}, {"fingerprint": ""}, {"fingerprint": "0" * 12}):
        acts_on(operator, "a", **data)
        operator.post(page_of("a", "ask"), data)
    record = get_backend().get("a")
    assert record is not None
    assert not record.asked
    data = {"lock": f"{fingerprint(record.token)} a", "confirm": "yes", "reason": "x"}
    answer = operator.post(f"{LIST}release/", {**data, "next": "//evil.example", "q": "//evil.example"})
    assert answer["Location"].startswith(f"{LIST}?q=%2F%2Fevil")


# Guarded rows

GUARD = StateGuard(field="status", claim_from=["uploading", "processing"], claim_as="processing", failed="failed")


@model_lock(Video, "admin:video:{video_id}", guard=GUARD, pk="video_id")
def process(video_id: int, during: Any) -> None:
    """Somebody looks at the admin meanwhile; then the body writes to its row."""
    during()
    current_claim().update(progress=50)


OWN = registered()[-1:]


@pytest.fixture(autouse=True)
def guards() -> Iterator[None]:
    """Guards that other modules registered on this model would add states."""
    with only_guards(OWN):
        yield


def test_a_guarded_row_is_fenced_and_left_as_chosen(operator: Client, locks: None) -> None:
    """Gold standard 8.43: the old holder runs on, and what it writes is refused."""
    row = Video.objects.create()

    def during() -> None:
        name = f"admin:video:{row.pk}"
        page = elsewhere(lambda: operator.get(page_of(name)))
        text = page.text
        assert f"testapp.video:{row.pk}" in text
        assert "row and lock belong together" in text
        fingerprint = page.context["lock"].info.fingerprint
        assert text.count(fingerprint) >= 2, "both sides show the token, as a fingerprint"
        form = elsewhere(lambda: operator.get(page_of(name, "release")))
        assert re.findall(r'<option value="(\w+)"', form.text) == ["processing", "uploading", "failed"]
        answer = elsewhere(lambda: acts_on(operator, name, fingerprint=fingerprint, row_state="failed"))
        assert answer.status_code == 302
        assert "taken from the old holder" in said(answer)[0][1]

    with pytest.raises(StaleClaim):
        process(row.pk, during)
    row.refresh_from_db()
    assert (row.status, row.progress, row.lock_token) == ("failed", 0, "")


def test_requests_in_transactions(operator: Client, locks: None) -> None:
    """With ATOMIC_REQUESTS the row must still be committed before the lock goes."""
    row = Video.objects.create()

    def during() -> None:
        name = f"admin:video:{row.pk}"
        shown = elsewhere(lambda: operator.get(page_of(name))).context["lock"].info.fingerprint

        def release() -> Any:
            connections["default"].settings_dict["ATOMIC_REQUESTS"] = True
            try:
                return acts_on(operator, name, fingerprint=shown)
            finally:
                connections["default"].settings_dict["ATOMIC_REQUESTS"] = False

        assert elsewhere(release).status_code == 302
        assert get_backend().get(name) is None

    with pytest.raises(StaleClaim):
        process(row.pk, during)


# Several at once


def test_several_with_one_confirmation(operator: Client, take) -> None:
    """Ticked, confirmed once, released; one that changed hands is left alone, and both is said."""
    picks = [f"{take(name, name)} {name}" for name in ("a", "b", "c:1/x")]
    more = [*picks, "000000000000 d", "junk", f"x {'y' * 300}"]
    page = operator.post(f"{LIST}release/", {"lock": more, "q": "x", "from": "0", "reason": 'no "confirm" with it'})
    assert "changed hands or were given back" in page.text
    assert page.status_code == 200
    assert re.findall(r'name="lock" value="([^"]*)"', page.text) == picks
    assert page.text.count("worker-1:42") == 3
    assert all(get_backend().get(name) for name in ("a", "b", "c:1/x")), "a page that asks does nothing"
    get_backend().remove("b", "b")
    take("b", "newer")
    answer = operator.post(f"{LIST}release/", {"lock": picks, "confirm": "yes", "reason": "deploy", "q": "x"})
    assert answer.status_code == 302
    assert answer["Location"] == f"{LIST}?q=x"
    assert said(answer) == [
        ("success", "2 locks were released."),
        ("warning", "1 lock changed hands since the page was shown, and was left alone."),
    ]
    assert get_backend().get("b").token == "newer"
    assert get_backend().get("a") is None
    assert acts("c:1/x")[0].reason == "deploy"


def test_the_store_goes_down_in_the_middle(operator: Client, take, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was done is said, and how much was not."""
    picks = [f"{take(name)} {name}" for name in ("a", "b", "c")]
    release = operations.release_lock

    def first_only(name: str, **options: Any) -> Any:
        if name != "a":
            raise BackendUnavailable("gone")
        return release(name, **options)

    monkeypatch.setattr(operations, "release_lock", first_only)
    answer = operator.post(f"{LIST}release/", {"lock": picks, "confirm": "yes", "reason": "x"})
    assert said(answer) == [
        ("success", "1 lock was released."),
        ("error", "The lock store cannot be reached. 2 locks were not released, as far as is known."),
    ]
