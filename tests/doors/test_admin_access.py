"""The admin asks who is there: every page and every act, for every kind of person, and only a confirmed POST acts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.test import Client

from django_tasklock import RateLimiter
from django_tasklock.backends import get_backend
from django_tasklock.models import AuditEntry, ParkedMessage, SweepEntry
from django_tasklock.operations.sweep import stream
from django_tasklock.types import AcquireRequest, fingerprint
from tests.support.admin_pages import PERMISSIONS, page_of, token_of
from tests.support.messages import park
from tests.support.sweeping import dead_holder, hold

pytest_plugins = ["tests.support.admin_fixtures"]
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("admin_settings")]

ADMIN = "/admin/tasklock/"
KINDS = ("anonymous", "staff", "root", *PERMISSIONS)
NAME, OTHER, DEAD = "order:1/x", "order:2", "dead"
LIMIT = "api"
TOKEN = "the-token-of-the-member-1"
MEMBER = fingerprint(TOKEN)
NOBODY = ("superuser of superusers",)


class Page(NamedTuple):
    """An address, the permissions that it needs, and what those who have them are answered."""

    url: str
    needs: tuple[str, ...]
    shown: int = 200
    stock: bool = False
    """Whether Django's own views answer: methods that it does not know are a GET for those."""


LOOK, RELEASE = ("view_lock",), ("view_lock", "release_lock")
LOOK_LIMIT, CHANGE_LIMIT = ("view_ratelimit",), ("view_ratelimit", "change_ratelimit")
LOOK_PARKED, LOOK_AUDIT = ("view_parkedmessage",), ("view_auditentry",)


def limit_page(page: str, name: str = LIMIT) -> str:
    return f"{ADMIN}ratelimit/{name}/{page}/"


PAGES = [
    Page(f"{ADMIN}lock/", LOOK),
    Page(f"{ADMIN}lock/overview/", LOOK),
    Page(f"{ADMIN}lock/look-up/?name=a", LOOK, 302),
    Page(page_of(NAME), LOOK),
    Page(page_of("nobody has it"), LOOK),
    Page(page_of(NAME, "history"), LOOK, 302),
    Page(page_of(NAME, "release"), RELEASE),
    Page(page_of(NAME, "ask"), RELEASE),
    Page(page_of(NAME, "delete"), RELEASE, 302),
    Page(f"{ADMIN}lock/release/", RELEASE, 302),
    Page(f"{ADMIN}lock/add/", NOBODY),
    Page(f"{ADMIN}ratelimit/", LOOK_LIMIT),
    Page(limit_page("change"), LOOK_LIMIT),
    Page(limit_page("history"), LOOK_LIMIT, 302),
    *(Page(limit_page(act), CHANGE_LIMIT) for act in ("reset", "limit", "pause", "resume", "release")),
    Page(limit_page("delete"), CHANGE_LIMIT, 302),
    Page(f"{ADMIN}ratelimit/add/", NOBODY),
    Page(f"{ADMIN}parkedmessage/", LOOK_PARKED, stock=True),
    Page(f"{ADMIN}parkedmessage/add/", NOBODY),
    Page(f"{ADMIN}auditentry/", LOOK_AUDIT, stock=True),
    Page(f"{ADMIN}auditentry/add/", NOBODY),
    Page(f"{ADMIN}sweepentry/", LOOK, stock=True),
    Page(f"{ADMIN}sweepentry/add/", RELEASE, stock=True),
]
WELL_FORMED = {
    "fingerprint": fingerprint(token_of(NAME)),
    "lock": f"{fingerprint(token_of(OTHER))} {OTHER}",
    "reason": "stuck",
    "confirm": "yes",
    "percent": "50",
    "minutes": "10",
    "member": MEMBER,
    "post": "yes",
}
"""A complete form of every act at once."""


class Act(NamedTuple):
    """A form, and how it is seen that it was done."""

    url: str
    needs: tuple[str, ...]
    done: Callable[[], bool]
    more: dict[str, str] = {}


def gone(name: str) -> Callable[[], bool]:
    return lambda: get_backend().get(name) is None


def limiter() -> RateLimiter:
    return RateLimiter(LIMIT, "9/h", "100/d")


PARKED = ("view_parkedmessage", "change_parkedmessage")
ACTS = [
    Act(page_of(NAME, "ask"), RELEASE, lambda: bool((found := get_backend().get(NAME)) and found.asked)),
    Act(page_of(NAME, "release"), RELEASE, gone(NAME)),
    Act(f"{ADMIN}lock/release/", RELEASE, gone(OTHER)),
    Act(limit_page("limit"), CHANGE_LIMIT, lambda: limiter().usage().share == 0.5),
    Act(limit_page("reset"), CHANGE_LIMIT, lambda: limiter().usage().used == 0),
    Act(limit_page("pause"), CHANGE_LIMIT, lambda: limiter().usage().paused > 500),
    Act(limit_page("resume"), CHANGE_LIMIT, lambda: limiter().usage().paused == 0),
    Act(limit_page("release"), CHANGE_LIMIT, lambda: get_backend().permits.members(LIMIT) == []),
    Act(
        f"{ADMIN}parkedmessage/",
        PARKED,
        lambda: not ParkedMessage.objects.filter(state="dead").exists(),
        {"action": "discard_parked", "index": "0"},
    ),
    Act(f"{ADMIN}sweepentry/add/", RELEASE, gone(DEAD), {"begins": DEAD}),
]


@pytest.fixture(autouse=True)
def world(take, monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks, a limit and its member, a message, an entry of the audit trail, a run of the sweep."""
    monkeypatch.setattr(stream, "sleep", lambda pause: None)
    take(NAME, ttl=600_000)
    take(OTHER, ttl=600_000)
    hold(DEAD, dead_holder(), ttl=600_000)
    limiter().reserve()
    get_backend().permits.acquire(AcquireRequest(LIMIT, TOKEN, 60_000, 3_600_000, '{"limit":3}', limit=3))
    park(1, NAME, state="dead", problem="no")
    SweepEntry.objects.create(at="2026-03-01T00:00:00Z", actor="x", swept=0, seconds=1)


def everything() -> tuple[Any, ...]:
    """What could have been changed."""
    store = get_backend()
    records = [store.get(name) for name in (NAME, OTHER, DEAD)]
    usage = limiter().usage()
    return (
        [(one.token, one.asked, one.fence) if one else None for one in records],
        (usage.used, usage.share, usage.paused, [one.token for one in store.permits.members(LIMIT)]),
        list(ParkedMessage.objects.values_list("state", flat=True)),
        [model.objects.count() for model in (AuditEntry, LogEntry, SweepEntry)],
    )


def may(kind: str, needs: tuple[str, ...]) -> bool:
    """By the permissions, not by the code."""
    if kind == "root":
        return needs != NOBODY
    return kind not in ("anonymous", "nobody") and set(needs) <= set(PERMISSIONS.get(kind, ()))


def forms() -> dict[str, dict[str, str]]:
    """The form of each act, by its address."""
    message = str(ParkedMessage.objects.get().pk)
    return {act.url: {**WELL_FORMED, "_selected_action": message, **act.more} for act in ACTS}


@pytest.mark.parametrize("kind", KINDS)
def test_who_may_look(kind: str, visitor) -> None:
    client, before = visitor(kind), everything()
    for page in PAGES:
        login, allowed = kind in ("anonymous", "nobody"), may(kind, page.needs)
        for method in ("get", "put"):
            answer = getattr(client, method)(page.url)
            known = page.shown if page.stock or method == "get" else 405
            assert answer.status_code == (302 if login else known if allowed else 403), (page.url, method)
            assert (answer.status_code == 302 and "/login/" in answer["Location"]) is login, (page.url, method)
    assert everything() == before


@pytest.mark.parametrize("kind", KINDS)
def test_who_may_act(kind: str, visitor) -> None:
    """Each act is done by those who may, and by nobody else; its entry in the audit trail says who it was."""
    client, known = visitor(kind), forms()
    for act in ACTS:
        allowed, was = may(kind, act.needs), act.done()
        client.post(act.url, known[act.url])
        assert act.done() is (allowed or was), act.url
    assert AuditEntry.objects.count() == sum(may(kind, act.needs) for act in ACTS)
    assert set(AuditEntry.objects.values_list("actor", flat=True)) <= {kind}


def test_only_a_post_with_a_reason_and_a_token_to_its_own_page_acts(visitor) -> None:
    """Gold standard 8.42: whatever a GET carries. The token of CSRF also in a project without the middleware."""
    client, before, known = visitor("root"), everything(), forms()
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(User.objects.get(username="root"))
    rows = [("parkedmessage", ParkedMessage), ("auditentry", AuditEntry), ("sweepentry", SweepEntry)]
    AuditEntry.objects.create(at="2026-03-01T00:00:00Z", actor="x", action="release", key="", name="x")
    before = everything()
    for page in PAGES:
        client.get(page.url, known.get(page.url, WELL_FORMED))
        if page.url not in known:
            client.post(page.url, WELL_FORMED)
    for model, table in rows:
        for page in ("change", "delete"):
            url = f"{ADMIN}{model}/{table.objects.get().pk}/{page}/"
            assert client.post(url, {**WELL_FORMED, "_save": "Save"}).status_code == 403
    for url, form in known.items():
        assert strict.post(url, form).status_code == 403, url
        if not url.endswith(("ask/", "sweepentry/add/")):  # which need none
            client.post(url, {**form, "reason": "  "})
    assert everything() == before


def test_what_one_may_not_do_is_not_offered(visitor) -> None:
    offers = {
        f"{ADMIN}lock/": ("viewer", "operator", ['id="tasklock-release-selected"', 'name="lock"']),
        page_of(NAME): ("viewer", "operator", ['id="tasklock-release"', 'id="tasklock-ask"']),
        limit_page("change"): ("limit_viewer", "limit_operator", ['id="tasklock-reset"', "tasklock-release-permit"]),
        f"{ADMIN}parkedmessage/": ("parked_viewer", "parked_operator", ['value="discard_parked"', page_of(NAME)]),
        f"{ADMIN}sweepentry/": ("viewer", "operator", [f"{ADMIN}sweepentry/add/"]),
    }
    for url, (looks, acts, parts) in offers.items():
        for part in parts:
            assert part not in visitor(looks).get(url).text, (url, part)
            assert part in visitor(acts).get(url).text, (url, part)
    for kind, shown in (("staff", ""), ("viewer", "lock"), ("limit_viewer", "ratelimit"), ("auditor", "auditentry")):
        text = visitor(kind).get("/admin/").text
        for model in ("lock", "ratelimit", "parkedmessage", "auditentry"):
            assert (f'href="{ADMIN}{model}/"' in text) is (model == shown), (kind, model)


def test_there_are_no_other_permissions() -> None:
    """None that would let one edit the tables behind."""
    found = Permission.objects.filter(content_type__app_label="tasklock").values_list("codename", flat=True)
    looks = ["view_auditentry", "view_lock", "view_parkedmessage", "view_ratelimit"]
    assert sorted(found) == ["change_parkedmessage", "change_ratelimit", "release_lock", *looks]


def test_answers_are_not_kept_by_caches(operator: Client) -> None:
    """What is locked is old news a second later."""
    for url in (f"{ADMIN}lock/", page_of(NAME), page_of(NAME, "release")):
        assert "no-store" in operator.get(url)["Cache-Control"], url
