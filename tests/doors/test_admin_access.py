"""Who may see and do what in the admin: kinds of people x pages x methods, and that only a confirmed POST acts."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.test import Client

from django_tasklock.backends import get_backend
from django_tasklock.models import AuditEntry
from django_tasklock.operations import acts
from tests.support.admin_pages import KINDS, LIST, page_of

pytest_plugins = ["tests.support.admin_fixtures"]
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("admin_settings")]

NAME = "order:1/x"
PAGES = {
    "list": LIST,
    "look_up": f"{LIST}look-up/?name=a",
    "lock": page_of(NAME),
    "free": page_of("nobody has it"),
    "history": page_of(NAME, "history"),
    "release": page_of(NAME, "release"),
    "ask": page_of(NAME, "ask"),
    "delete": page_of(NAME, "delete"),
    "selected": f"{LIST}release/",
    "add": f"{LIST}add/",
}
LOOKING = {"list": 200, "look_up": 302, "lock": 200, "free": 200, "history": 302}
ACTING = {"release": 200, "ask": 200, "selected": 302, "delete": 302}
ACTING_BY_POST = {"release": 302, "ask": 302, "selected": 302, "delete": 405}
METHODS = ("get", "head", "post", "put", "patch", "delete", "options", "trace")


def expected(kind: str, page: str, method: str) -> int:
    """Written out from the rules, not from the code."""
    if kind in ("anonymous", "nobody"):
        return 302  # to the login
    if page == "add" or kind in ("staff", "releaser"):
        return 403
    if page in LOOKING:
        return LOOKING[page] if method in ("get", "head") else 405
    if kind == "viewer":
        return 403
    if method in ("get", "head"):
        return ACTING[page]
    return ACTING_BY_POST[page] if method == "post" else 405


@pytest.fixture
def held(take) -> str:
    """The lock of the pages above, which somebody holds."""
    return take(NAME)


def everything() -> tuple[Any, ...]:
    """What could have been changed."""
    record = get_backend().get(NAME)
    assert record is not None
    return record.token, record.asked, record.fence, AuditEntry.objects.count(), LogEntry.objects.count()


@pytest.mark.parametrize("kind", KINDS)
def test_who_may_do_what(kind: str, visitor, held: str) -> None:
    """Every page, every method; the permission is checked in each (gold standard 8.42)."""
    client = visitor(kind)
    before = everything()
    for page, url in PAGES.items():
        for method in METHODS:
            answer = getattr(client, method)(url, HTTP_HOST="testserver")
            wanted = expected(kind, page, method)
            if method == "post" and wanted == 302 and page in ("release", "ask") and kind in ("operator", "root"):
                continue  # that acts: below
            assert answer.status_code == wanted, (kind, page, method)
            login = answer.status_code == 302 and "/login/" in answer["Location"]
            assert login == (kind in ("anonymous", "nobody")), (kind, page, method)
    assert everything() == before, "nothing that was tried may change anything"


@pytest.mark.parametrize("kind", KINDS)
def test_who_can_release_by_post(kind: str, visitor, held: str) -> None:
    """A complete, well-formed POST of each kind of person: it acts for two of them."""
    data = {"fingerprint": held, "reason": "stuck", "confirm": "yes", "lock": f"{held} {NAME}"}
    client = visitor(kind)
    may = kind in ("operator", "root")
    for page in ("lock", "list", "delete", "history", "look_up", "add"):
        client.post(PAGES[page], data)
    assert get_backend().get(NAME).asked == 0
    answer = client.post(PAGES["ask"], data)
    assert answer.status_code == (302 if may or kind in ("anonymous", "nobody") else 403)
    assert bool(get_backend().get(NAME).asked) is may
    client.post(PAGES["release"], data)
    assert (get_backend().get(NAME) is None) is may


@pytest.mark.parametrize("kind", KINDS)
def test_who_can_release_several_by_post(kind: str, visitor, held: str) -> None:
    """The same through the list."""
    data = {"reason": "stuck", "confirm": "yes", "lock": f"{held} {NAME}"}
    visitor(kind).post(PAGES["selected"], data)
    assert (get_backend().get(NAME) is None) is (kind in ("operator", "root"))


def test_a_get_with_all_the_fields_of_a_post_changes_nothing(operator: Client, held: str) -> None:
    """Gold standard 8.42: no state is changed by GET, whatever it carries."""
    data = {"fingerprint": held, "reason": "stuck", "confirm": "yes", "lock": f"{held} {NAME}", "post": "yes"}
    before = everything()
    for url in PAGES.values():
        operator.get(url, data)
        operator.head(url, data)
    assert everything() == before


def test_a_post_without_the_csrf_token_is_refused(visitor, held: str) -> None:
    """Also in a project without the middleware."""
    strict = Client(enforce_csrf_checks=True)
    visitor("root")
    strict.force_login(User.objects.get(username="root"))
    for page in ("release", "ask", "selected"):
        assert strict.post(PAGES[page], {"fingerprint": held, "reason": "x"}).status_code == 403
    assert get_backend().get(NAME) is not None


def test_buttons_are_shown_to_those_who_may_press_them(visitor, held: str) -> None:
    """The list's and the lock's."""
    for kind, may in (("viewer", False), ("operator", True)):
        client = visitor(kind)
        assert ('id="tasklock-release-selected"' in client.get(PAGES["list"]).text) is may
        assert ('name="lock"' in client.get(PAGES["list"]).text) is may
        assert ('id="tasklock-release"' in client.get(PAGES["lock"]).text) is may
        assert ('id="tasklock-ask"' in client.get(PAGES["lock"]).text) is may


def test_the_index_shows_locks_to_those_who_may_look(visitor) -> None:
    """As something to view: nothing is added or changed there."""
    for kind, may in (("staff", False), ("releaser", False), ("viewer", True), ("root", True)):
        text = visitor(kind).get("/admin/").text
        assert (f'href="{LIST}"' in text) is may, kind
        assert f"{LIST}add/" not in text


def test_there_are_two_permissions_of_each_kind_and_no_others() -> None:
    """Apart from each other, and none that would let one edit the tables behind."""
    found = Permission.objects.filter(content_type__app_label="tasklock").values_list("codename", flat=True)
    looks = ["view_auditentry", "view_lock", "view_parkedmessage", "view_ratelimit"]
    assert sorted(found) == ["change_parkedmessage", "change_ratelimit", "release_lock", *looks]


def test_answers_are_not_kept_by_caches(operator: Client, held: str) -> None:
    """What is locked is old news a second later."""
    for page in ("list", "lock", "release"):
        assert "no-store" in operator.get(PAGES[page])["Cache-Control"], page


def test_the_act_is_in_both_trails_with_who_and_why(operator: Client, held: str) -> None:
    """And the LogEntry's link leads to the lock's page."""
    operator.post(PAGES["release"], {"fingerprint": held, "reason": "worker-1 was unplugged"})
    [act] = acts(NAME)
    assert (act.actor, act.action, act.reason) == ("operator", "release", "worker-1 was unplugged")
    [entry] = LogEntry.objects.all()
    assert entry.user.username == "operator"
    assert entry.get_admin_url() == PAGES["lock"]
    assert "worker-1 was unplugged" in entry.get_change_message()
    page = operator.get(entry.get_admin_url()).text
    assert "worker-1 was unplugged" in page, "the history of the name is on its page, free or not"
