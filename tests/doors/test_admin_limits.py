"""Limits in the admin: what the pages show, and what comes of an act."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import pytest
from django.contrib.admin.utils import quote
from django.test import Client

from django_tasklock import RateLimiter
from django_tasklock.backends import get_backend
from django_tasklock.operations import Actor
from django_tasklock.operations.limits.permits import get_permits
from django_tasklock.operations.limits.rates import pause_limit
from django_tasklock.types import AcquireRequest, fingerprint
from tests.support.admin_pages import words
from tests.support.stores import eventually, granted

pytest_plugins = ["tests.support.admin_fixtures"]
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("admin_settings", "locks")]

LIST = "/admin/tasklock/ratelimit/"
NAME = "api:1/x"
MARKUP = "<script>alert('1')</script>&<b>\"x\"</b>"
TOKEN = "the-token-of-the-member-1"
MEMBER = fingerprint(TOKEN)


def page_of(name: str, page: str = "change") -> str:
    """By hand, so that a change of the addresses is seen."""
    return f"{LIST}{quote(name)}/{page}/"


PAGES = {
    "page": page_of(NAME),
    "pause": page_of(NAME, "pause"),
    "resume": page_of(NAME, "resume"),
    "release": page_of(NAME, "release") + f"?member={MEMBER}",
}


@pytest.fixture
def busy() -> RateLimiter:
    """A rate limit of which one place is used and one is waited for, and a permit of a limiter of the same name."""
    limiter = RateLimiter(NAME, "1/m", "100/d")
    limiter.reserve()
    limiter.reserve()
    permit(NAME, TOKEN)
    return limiter


@pytest.fixture
def actor(visitor: Any) -> Client:
    return visitor("limit_operator")


def permit(name: str, token: str, limit: int = 3, *, hold: int = 3_600_000) -> str:
    """Somebody far away takes one; the fingerprint."""
    holder = f'{{"host":"worker-1","pid":42,"task":"videos.transcode","task_id":"id-1","limit":{limit}}}'
    granted(get_backend().permits.acquire(AcquireRequest(name, token, 60_000, hold, holder, limit=limit)))
    return fingerprint(token)


class TestPages:
    def test_a_limit_in_the_list_and_on_its_page(self, actor: Client, busy: RateLimiter) -> None:
        assert busy.try_acquire() is None
        page = actor.get(LIST)
        text = words(page.text)
        for part in (NAME, "◐ full", "1/m 1 of 1 1 booked ahead", "100/d 1 of 100", "100 %", "1 of 3", "worker-1:42"):
            assert part in text, part
        assert re.search(r" the last in (1 min 0|\d+) s ", text)
        assert 'value="1" aria-label="Use of 1/m"' in page.text
        assert "1 rate limit, 1 concurrency limiter in use" in text
        page = actor.get(PAGES["page"]).text
        for part in (
            "A call made now would wait for ",
            "1 unit is booked ahead",
            "In the settings no",
            "videos.transcode id-1",
            MEMBER,
            "No operator has ever acted on it.",
        ):
            assert part in words(page), part
        assert TOKEN not in page

    def test_tenants(self, actor: Client) -> None:
        limiter = RateLimiter("openai", "100/m", tenants="2/m")
        limiter.tenant("acme").acquire()
        limiter.tenant(None).acquire()
        assert "openai:tenant" not in actor.get(LIST).text
        page = actor.get(page_of("openai")).text
        assert "(the default tenant)" in page
        assert page_of("openai:tenant:acme") in page
        assert "2/m 1 of 2" in words(page)
        tenant = actor.get(page_of("openai:tenant:acme")).text
        assert f'href="{page_of("openai")}">openai</a>' in tenant
        shared = "Its calls also need their turn at “openai”, which all tenants share."  # that may be paused or full
        assert shared in words(tenant)
        assert shared not in words(page)

    def test_names_are_data(self, actor: Client) -> None:
        """Gold standard 8.42, and names with slashes, dots and other scripts have pages."""
        for name in (MARKUP, "a/b", "..", "任务"):
            RateLimiter(name, "5/m").reserve()
            permit(name, f"token of {name}")
        page = actor.get(LIST)
        assert MARKUP not in page.text
        links = {unescape(link) for link in re.findall(r'href="([^"]*/ratelimit/[^"]*/change/)"', page.text)}
        assert len(links) == 4
        for link in links:
            found = actor.get(link)
            assert found.status_code == 200
            assert MARKUP not in found.text


class TestActs:
    def test_a_pause_and_its_end(self, actor: Client, busy: RateLimiter) -> None:
        """Until when, by whom and why is on the page; it replaces a longer one, and ends when it is ended."""
        busy.penalize(3000)
        actor.post(PAGES["pause"], {"minutes": "10", "reason": "their deploy"})
        assert 590 < busy.usage().paused <= 600
        assert busy.try_acquire() is None
        text = words(actor.get(PAGES["page"]).text)
        assert re.search(
            r"limit_operator paused it at [-0-9: ]+: no call starts for (9 min 59|10 min 0) s, until", text
        )
        assert "Reason: their deploy" in text
        assert "limit_operator paused it their deploy paused for 600 s, until" in text
        for wrong in ("0", "-1", "10081", "x", ""):
            assert actor.post(PAGES["pause"], {"minutes": wrong, "reason": "x"}).status_code == 200
        actor.post(PAGES["resume"], {"reason": "it is over"})
        assert busy.usage().paused == 0
        text = words(actor.get(PAGES["page"]).text)
        assert "limit_operator ended its pause it is over" in text
        assert "no call starts" not in text
        answer = actor.post(PAGES["resume"], {"reason": "again"}, follow=True)
        assert "is not paused" in words(answer.text)

    def test_nobody_is_named_for_a_pause_of_the_remote_service(self, actor: Client, busy: RateLimiter) -> None:
        """Not who paused it before, neither after that pause nor while a longer one lasts."""
        pause_limit(NAME, 1, by=Actor("alice"))
        assert eventually(lambda: busy.usage().paused == 0)
        for seconds in (60, 120):
            busy.penalize(seconds)
            text = words(actor.get(PAGES["page"]).text)
            assert "alice paused it at" not in text
            assert "The remote service asked for a pause" in text
            pause_limit(NAME, 90, by=Actor("alice"))

    def test_a_permit_of_one_member(self, actor: Client, busy: RateLimiter) -> None:
        """The other one keeps its own, and one that is gone is not somebody else's."""
        other = permit(NAME, "another-token")
        page = actor.get(PAGES["page"])
        assert len(re.findall(r"tasklock-release-permit", page.text)) == 2
        assert "videos.transcode" in words(actor.get(PAGES["release"]).text)
        answer = actor.post(PAGES["release"], {"reason": "stuck", "member": MEMBER}, follow=True)
        assert f"The permit of “{NAME}” was released." in words(answer.text)
        [left] = get_permits(NAME).members
        assert left.fingerprint == other
        answer = actor.post(PAGES["release"], {"reason": "stuck", "member": MEMBER}, follow=True)
        assert "has no permit any more" in words(answer.text)
        assert get_permits(NAME).used == 1
        assert 'id="tasklock-back"' in actor.get(PAGES["release"]).text
