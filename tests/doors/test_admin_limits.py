"""Rate limits in the admin: who may see and do what, what the pages show, and what comes of an act."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.admin.utils import quote
from django.test import Client

from django_tasklock import ConcurrencyLimiter, RateLimiter
from django_tasklock.admin import RateLimitAdmin
from django_tasklock.backends import get_backend
from django_tasklock.backends.contract.rates import Terms
from django_tasklock.models import AuditEntry
from django_tasklock.operations.limits.permits import get_permits
from django_tasklock.rates.notation import parse_rates
from django_tasklock.types import AcquireRequest, fingerprint
from tests.support.admin_pages import words
from tests.support.redis_server import free_port
from tests.support.stores import granted

pytest_plugins = ["tests.support.admin_fixtures"]
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("admin_settings", "locks")]

LIST = "/admin/tasklock/ratelimit/"
NAME = "api:1/x"
MARKUP = "<script>alert('1')</script>&<b>\"x\"</b>"
CHINESE = {"HTTP_ACCEPT_LANGUAGE": "zh-hans"}
KINDS = ("anonymous", "nobody", "staff", "operator", "limit_viewer", "limit_changer", "limit_operator", "root")
ACTORS = ("limit_operator", "root")
METHODS = ("get", "head", "post", "put", "patch", "delete", "options", "trace")
LOOKING = {"list": 200, "page": 200, "free": 200, "history": 302}
ACTING = {"reset": 200, "limit": 200, "pause": 200, "resume": 200, "release": 200, "delete": 302}
TOKEN = "the-token-of-the-member-1"
MEMBER = fingerprint(TOKEN)


def page_of(name: str, page: str = "change") -> str:
    """By hand, so that a change of the addresses is seen."""
    return f"{LIST}{quote(name)}/{page}/"


PAGES = {
    "list": LIST,
    "page": page_of(NAME),
    "free": page_of("nobody knows it"),
    "history": page_of(NAME, "history"),
    "reset": page_of(NAME, "reset"),
    "limit": page_of(NAME, "limit"),
    "pause": page_of(NAME, "pause"),
    "resume": page_of(NAME, "resume"),
    "release": page_of(NAME, "release") + f"?member={MEMBER}",
    "delete": page_of(NAME, "delete"),
    "add": f"{LIST}add/",
}
WELL_FORMED = {"reason": "the quota is new", "percent": "50", "minutes": "10", "member": MEMBER}


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


def everything() -> tuple[Any, ...]:
    """What could have been changed."""
    store = get_backend()
    use = store.rates.usage(Terms(NAME, parse_rates("1/m, 100/d")))
    taken = [(one.token, one.fence) for one in store.permits.members(NAME)]
    counts = (AuditEntry.objects.count(), LogEntry.objects.count())
    return use.rates, use.share, use.refused, store.rates.names(), taken, counts


def expected(kind: str, page: str, method: str) -> int:
    """Written out from the rules, not from the code."""
    if kind in ("anonymous", "nobody"):
        return 302  # to the login
    if page == "add" or kind in ("staff", "operator", "limit_changer"):
        return 403
    if page in LOOKING:
        return LOOKING[page] if method in ("get", "head") else 405
    if kind == "limit_viewer":
        return 403
    if method in ("get", "head"):
        return ACTING[page]
    if method == "post" and page != "delete":
        return 200  # without a reason: asked again
    return 405


class TestWhoMayDoWhat:
    @pytest.mark.parametrize("kind", KINDS)
    def test_matrix(self, kind: str, visitor: Any, busy: RateLimiter) -> None:
        """Every page, every method; what is not a well-formed POST changes nothing (gold standard 8.42)."""
        client, before = visitor(kind), everything()
        for page, url in PAGES.items():
            for method in METHODS:
                answer = getattr(client, method)(url, HTTP_HOST="testserver")
                assert answer.status_code == expected(kind, page, method), (kind, page, method)
                login = answer.status_code == 302 and "/login/" in answer["Location"]
                assert login == (kind in ("anonymous", "nobody")), (kind, page, method)
        for url in PAGES.values():
            client.get(url, WELL_FORMED)
        assert everything() == before

    @pytest.mark.parametrize("kind", KINDS)
    def test_by_post(self, kind: str, visitor: Any, busy: RateLimiter) -> None:
        """A complete, well-formed POST of each kind of person: it acts for two of them."""
        client, may = visitor(kind), kind in ACTORS
        before = everything()
        for page in ("list", "page", "history", "delete", "add"):
            client.post(PAGES[page], WELL_FORMED)
        assert everything() == before
        for page, done in (("limit", 0.5), ("reset", 1.0)):
            client.post(PAGES[page], WELL_FORMED)
            assert busy.usage().share == (done if may else 1.0)
        assert (busy.usage().used == 0) is may
        for page, paused in (("pause", 600), ("resume", 0)):
            client.post(PAGES[page], WELL_FORMED)
            assert busy.usage().paused == pytest.approx(paused if may else 0, abs=60)
        client.post(PAGES["release"], WELL_FORMED)
        assert (get_backend().permits.members(NAME) == []) is may
        assert AuditEntry.objects.count() == (5 if may else 0)

    def test_buttons_are_shown_to_those_who_may_press_them(self, visitor: Any, busy: RateLimiter) -> None:
        for kind, may in (("limit_viewer", False), ("limit_operator", True)):
            text = visitor(kind).get(PAGES["page"]).text
            for button in ('id="tasklock-reset"', 'id="tasklock-change"', "tasklock-release-permit"):
                assert (button in text) is may

    def test_the_index_shows_limits_to_those_who_may_look(self, visitor: Any) -> None:
        for kind, may in (("staff", False), ("operator", False), ("limit_changer", False), ("limit_viewer", True)):
            text = visitor(kind).get("/admin/").text
            assert (f'href="{LIST}"' in text) is may, kind
            assert f"{LIST}add/" not in text


class TestPages:
    def test_a_limit_in_the_list(self, actor: Client, busy: RateLimiter) -> None:
        assert busy.try_acquire() is None
        page = actor.get(LIST)
        text = words(page.text)
        for part in (NAME, "◐ full", "1/m 1 of 1 1 booked ahead", "100/d 1 of 100", "100 %"):
            assert part in text, part
        assert re.search(r" the last in (1 min 0|\d+) s ", text)
        assert 'value="1" aria-label="Use of 1/m"' in page.text
        assert "1 rate limit, 1 concurrency limiter in use" in text
        assert "1 of 3" in text
        assert "worker-1:42" in text

    def test_one_of_the_settings(self, actor: Client, settings: Any) -> None:
        settings.TASKLOCK = {**settings.TASKLOCK, "RATE_LIMITS": {"tavily": "100/m"}}
        text = words(actor.get(LIST).text)
        for part in ("tavily", "● open", "100/m 0 of 100", "at once"):
            assert part in text, part
        assert "In the settings yes" in words(actor.get(page_of("tavily")).text)

    def test_the_page_of_a_limit(self, actor: Client, busy: RateLimiter) -> None:
        text = words(actor.get(PAGES["page"]).text)
        for part in (
            "A call made now would wait for ",
            "1 unit is booked ahead",
            "In the settings no",
            "1 of 1",
            "Members",
            "videos.transcode id-1",
            MEMBER,
            "lease: 5",
            "No operator has ever acted on it.",
        ):
            assert part in text, part
        assert TOKEN not in actor.get(PAGES["page"]).text

    def test_a_pause_and_a_lowered_limit(self, actor: Client, busy: RateLimiter) -> None:
        busy.penalize(3000)
        busy.adjust(0.5)
        assert re.search(r"‖ paused until \d{4}-\d\d-\d\d \d\d:\d\d:\d\d", words(actor.get(LIST).text))
        text = words(actor.get(PAGES["page"]).text)
        assert "The remote service asked for a pause: no call starts for 49 min" in text
        assert "Only 50 % of its limit is in force" in text
        assert "Paused until" in text

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

    def test_all_links_stay_on_the_site(self, actor: Client, busy: RateLimiter) -> None:
        """Nothing leads from a project's own admin site to the default one."""
        busy.tenant("acme", "2/m").try_acquire()
        ours = "/operators/tasklock/ratelimit/"
        urls = [ours, *(page.replace(LIST, ours) for page in (PAGES["page"], page_of(f"{NAME}:tenant:acme")))]
        for url in (*urls, *(PAGES[page].replace(LIST, ours) for page in ("free", "reset", "limit", "release"))):
            text = actor.get(url).text
            assert ours in text, url
            assert 'href="/admin/' not in text, url
        answer = actor.post(PAGES["reset"].replace(LIST, ours), WELL_FORMED)
        assert answer["Location"] == PAGES["page"].replace(LIST, ours)

    def test_an_unknown_limiter_has_no_page_and_no_actions(self, actor: Client) -> None:
        assert "No rate limit of this name is known" in words(actor.get(PAGES["free"]).text)
        for page in ("reset", "limit", "release"):
            assert 'id="tasklock-back"' in actor.get(page_of("nobody knows it", page)).text
            answer = actor.post(page_of("nobody knows it", page), WELL_FORMED, follow=True)
            assert "Nothing was done" in words(answer.text)
        assert actor.get(page_of("x" * 201)).status_code == 404

    def test_an_empty_list(self, actor: Client) -> None:
        assert "none was used lately" in words(actor.get(LIST).text)
        assert "No rate limit matches." in words(actor.get(LIST, {"q": "x"}).text)

    def test_search_and_pages(self, actor: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        """Following the links visits each limit once."""
        monkeypatch.setattr(RateLimitAdmin, "list_per_page", 2)
        for number in range(5):
            RateLimiter(f"a:{number}", "5/m").reserve()
        RateLimiter("b", "5/m").reserve()
        seen: list[str] = []
        url: str | None = "?q=A:"
        while url:
            page = actor.get(LIST + url)
            seen += re.findall(r'<th role="rowheader".*?>(a:<wbr>\d)</a>', page.text)
            following = re.search(r'id="tasklock-next" rel="next" href="([^"]*)"', page.text)
            url = unescape(following[1]) if following else None
        assert seen == [f"a:<wbr>{number}" for number in reversed(range(5))]
        for wrong in ("?from=x", "?from=-1", "?from=99999", f"?from={'9' * 50}"):
            assert actor.get(LIST + wrong).status_code == 200

    def test_names_are_data(self, actor: Client) -> None:
        """Gold standard 8.42, and names with slashes, dots and other scripts have pages."""
        for name in (MARKUP, "a/b", "..", "任务", "a?b#c%25"):
            RateLimiter(name, "5/m").reserve()
            permit(name, f"token of {name}")
        page = actor.get(LIST)
        assert MARKUP not in page.text
        links = {unescape(link) for link in re.findall(r'href="([^"]*/ratelimit/[^"]*/change/)"', page.text)}
        assert len(links) == 5
        for link in links:
            found = actor.get(link)
            assert found.status_code == 200
            assert MARKUP not in found.text

    def test_numbers_of_locales_do_not_reach_the_bar(self, actor: Client, settings: Any) -> None:
        settings.USE_THOUSAND_SEPARATOR = True
        settings.LANGUAGE_CODE = "de"
        settings.LANGUAGES = [("de", "Deutsch")]
        limiter = RateLimiter("many", "10000/m")
        limiter.reserve(cost=5000)
        for url in (LIST, page_of("many")):
            [bar] = re.findall(r"<meter [^>]*>", actor.get(url).text)
            assert re.search(r'max="10000" high="9000" optimum="0" value="\d+"', bar), bar

    def test_the_store_is_down(self, actor: Client, settings: Any) -> None:
        """Nothing of where it is is told."""
        port = free_port()
        settings.TASKLOCK = {**settings.TASKLOCK, "LOCATION": f"redis://127.0.0.1:{port}/0"}
        for page in ("list", "page", "reset", "limit", "release"):
            answer = actor.get(PAGES[page])
            assert (answer.status_code, answer["Retry-After"]) == (503, "10"), page
            assert "the state of the limits is not known" in words(answer.text)
            assert str(port) not in answer.text
        assert actor.post(PAGES["reset"], WELL_FORMED).status_code == 503

    def test_a_store_that_keeps_no_limits(self, actor: Client, settings: Any) -> None:
        settings.TASKLOCK = {"BACKEND": "django_tasklock.backends.cache.CacheBackend", "LOCATION": "core"}
        assert "keeps no limits" in words(actor.get(LIST).text)
        for page in ("page", "reset", "limit", "release"):
            assert actor.get(PAGES[page]).status_code == 404
            assert actor.post(PAGES[page], WELL_FORMED).status_code in (404, 405)


class TestActs:
    @pytest.mark.parametrize("act", ["reset", "limit", "pause", "resume"])
    def test_its_page_warns_and_has_the_button_that_does_it(self, actor: Client, busy: RateLimiter, act: str) -> None:
        shown = actor.get(PAGES[act]).text
        assert 'id="tasklock-confirm"' in shown
        assert shown.count('class="tasklock-box') == 1

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

    def test_a_pause_that_the_other_side_asked_for_is_not_ours(self, actor: Client, busy: RateLimiter) -> None:
        actor.post(PAGES["pause"], WELL_FORMED)
        actor.post(PAGES["resume"], WELL_FORMED)
        busy.penalize(3000)
        assert "The remote service asked for a pause" in words(actor.get(PAGES["page"]).text)

    def test_reset(self, actor: Client, busy: RateLimiter) -> None:
        """Confirmed with a reason; in both trails; its LogEntry leads to the page."""
        page = actor.get(PAGES["reset"])
        assert "the whole limit may be used at once" in words(page.text)
        assert "This field is required" in words(actor.post(PAGES["reset"], {"reason": " "}).text)
        assert busy.usage().used == 1
        answer = actor.post(PAGES["reset"], WELL_FORMED, follow=True)
        assert answer.redirect_chain == [(PAGES["page"], 302)]
        text = words(answer.text)
        assert f"The rate limit “{NAME}” was reset." in text
        assert "limit_operator reset it the quota is new reset; before: 1 used and 1 ahead of 1/m" in text
        assert busy.usage().used == 0
        [entry] = LogEntry.objects.all()
        assert entry.get_admin_url() == PAGES["page"]

    def test_change(self, actor: Client, busy: RateLimiter) -> None:
        busy.adjust(0.25)
        assert 'value="25"' in actor.get(PAGES["limit"]).text
        for wrong in ("", "0", "101", "x", "-1", "nan", "inf"):
            answer = actor.post(PAGES["limit"], {"percent": wrong, "reason": "r"})
            assert answer.status_code == 200, wrong
        assert busy.usage().share == 0.25
        answer = actor.post(PAGES["limit"], WELL_FORMED, follow=True)
        assert f"50 % of the rate limit “{NAME}” is in force now." in words(answer.text)
        assert busy.usage().share == 0.5
        assert "changed from 25 % to 50 % of 1/m, 100/d" in words(answer.text)

    def test_a_permit_of_one_member(self, actor: Client, busy: RateLimiter) -> None:
        """The other one keeps its own, and one that is gone is not somebody else's."""
        other = permit(NAME, "another-token")
        page = actor.get(PAGES["page"])
        assert len(re.findall(r"tasklock-release-permit", page.text)) == 2
        assert "videos.transcode" in words(actor.get(PAGES["release"]).text)
        answer = actor.post(PAGES["release"], WELL_FORMED, follow=True)
        assert f"The permit of “{NAME}” was released." in words(answer.text)
        [left] = get_permits(NAME).members
        assert left.fingerprint == other
        answer = actor.post(PAGES["release"], WELL_FORMED, follow=True)
        assert "has no permit any more" in words(answer.text)
        assert get_permits(NAME).used == 1
        assert 'id="tasklock-back"' in actor.get(PAGES["release"]).text

    def test_a_holder_of_this_process(self, actor: Client) -> None:
        """It goes on, and its release is no error."""
        with ConcurrencyLimiter("here", 2):
            [member] = get_permits("here").members
            actor.post(page_of("here", "release"), {**WELL_FORMED, "member": member.fingerprint})
            assert get_permits("here") is None

    def test_acts_with_atomic_requests(self, actor: Client, busy: RateLimiter, settings: Any) -> None:
        settings.DATABASES["default"]["ATOMIC_REQUESTS"] = True
        try:
            assert actor.post(PAGES["reset"], WELL_FORMED).status_code == 302
        finally:
            settings.DATABASES["default"]["ATOMIC_REQUESTS"] = False
        assert busy.usage().used == 0
