"""The table of end points: that each asks who calls, answers, and is in the docs."""

from __future__ import annotations

import json
import re
from typing import Any, get_args

import pytest
from django.urls import reverse

from django_tasklock import ConcurrencyLimiter, RateLimiter
from django_tasklock.celery.queue.envelope import sign
from django_tasklock.models import AuditEntry, SweepEntry
from django_tasklock.operations import Actor
from django_tasklock.operations.limits.rates import pause_limit
from django_tasklock.operations.sweep import stream
from django_tasklock.rest.access import RATES
from django_tasklock.rest.problems import Code
from django_tasklock.rest.table import END_POINTS, EndPoint
from tests import rest_page
from tests.support.guards import held
from tests.support.messages import park
from tests.support.rest import KEY, OTHER_KEY, Api, problem

pytest_plugins = ["tests.support.redis_fixtures", "tests.support.rest_fixtures"]


@pytest.fixture
def point(request: Any, rest: Any, monkeypatch: Any) -> EndPoint:
    """An end point, with a key that only reads and one that may do everything."""
    monkeypatch.setattr(stream, "sleep", lambda pause: None)
    rest(API_KEYS={"grafana": {"secret": KEY, "may": ["read"]}, "oncall": {"secret": OTHER_KEY, "may": ["all"]}})
    found: EndPoint = request.param
    return found


@pytest.fixture
def send(point: EndPoint, lock_up: Any, name: str) -> Any:
    """Sends the request that the end point is for, to something that is there."""
    limiter = RateLimiter(name, "9/m")
    limiter.acquire()
    if point.name == "resume-limit":
        pause_limit(name, 60, by=Actor("somebody"))
    permits = ConcurrencyLimiter(name, 2)
    permits.acquire()
    [member] = permits.members()
    if point.name != "publish-parked":
        lock_up(name)
    dead = {"state": "dead", "message": sign({"name": name})} if point.name == "requeue-parked" else {}
    task_id = park(1, name, **dead)
    run = SweepEntry.objects.create(at="2026-03-01T00:00:00Z", actor="x", swept=0, seconds=1)
    subject = {"name": name, "task_id": task_id, "number": run.pk}.get(point.subject)
    path = reverse(f"tasklock:{point.name}", args=[] if subject is None else [subject])
    needed = {"share": 0.5, "seconds": 60, "member": member.fingerprint}
    body = {field: value for field, value in needed.items() if field in point.fields}

    def request(key: str = "") -> Any:
        client = Api(enforce_csrf_checks=True, headers={"x-api-key": key} if key else {})
        return client.post(path, body) if point.acts else client.get(path)

    yield request
    permits.release()


@pytest.mark.django_db
@pytest.mark.parametrize("point", END_POINTS, indirect=True, ids=lambda point: point.name)
def test_each_is_refused_without_a_key_and_acts_only_for_one_that_may_act(
    point: EndPoint, send: Any, name: str
) -> None:
    """Gold standard 8.42: nothing is changed by GET."""
    acts_before = AuditEntry.objects.count()
    problem(send(), 401, "not_authenticated")
    problem(send(f"{KEY}x"), 401, "authentication_failed")
    if point.acts:
        assert "'all'" in problem(send(KEY), 403, "permission_denied")
        assert held(name) is (point.name != "publish-parked")
        assert AuditEntry.objects.count() == acts_before
    else:
        assert send(KEY).status_code == 200
    response = send(OTHER_KEY)
    client, path = Api(headers={"x-api-key": OTHER_KEY}), response.wsgi_request.path
    for method in ("put", "patch", "delete", "get" if point.acts else "post"):
        assert getattr(client, method)(path).status_code == 405, method
    if point.name == "publish-parked":  # here is no worker for it
        assert "could not be sent" in problem(response, 409, "not_done")
        return
    assert response.status_code == 200, response.content
    if point.acts and point.name != "sweep":  # that is a dry run
        assert AuditEntry.objects.filter(actor="key oncall").count() == 1


@pytest.mark.django_db
@pytest.mark.parametrize("point", END_POINTS, indirect=True, ids=lambda point: point.name)
def test_each_wants_the_permissions_that_it_names(point: EndPoint, send: Any, user: Any, rest: Any) -> None:
    """A user who has all others is refused."""
    from django.contrib.auth.models import Permission

    others = Permission.objects.filter(content_type__app_label="tasklock").exclude(
        codename=point.permissions[-1].removeprefix("tasklock.")
    )
    who = user()
    who.user_permissions.set(others)
    client = Api()
    client.force_login(who)
    path = send(KEY).wsgi_request.path
    assert (client.post(path) if point.acts else client.get(path)).status_code == 403


AWKWARD: list[Any] = ["", "\x00", "\ud800", "é" * 5000, "NaN", "2026-02-30", None, True, -1, 1e308, 10**40, [], [1], {}]
"""What a field may be sent."""


@pytest.mark.django_db
@pytest.mark.parametrize("point", END_POINTS, indirect=True, ids=lambda point: point.name)
def test_whatever_its_fields_are_it_is_no_error_of_ours(point: EndPoint, send: Any) -> None:
    """Answers: done, or what is wrong with it. Never 500, and nothing is done to a field that cannot be."""
    path = send(KEY).wsgi_request.path
    client = Api(headers={"x-api-key": OTHER_KEY})
    for field in (*point.fields, "no_such_field"):
        for value in AWKWARD:
            if point.acts:
                response = client.post(path, {field: value}, content_type="application/json")
            elif isinstance(value, list | dict) or value in (None, "\ud800"):  # a query string has none of these
                continue
            else:
                response = client.get(path, {field: value})
            assert response.status_code in (200, 400, 404, 409), (field, value, response.content)
            assert field != "no_such_field" or not point.acts or response.json()["code"] == "unknown_field"


class TestPage:
    PAGE = rest_page.PAGE.read_text("utf-8")

    def test_its_tables_are_made_from_the_table(self) -> None:
        assert rest_page.made(self.PAGE) == self.PAGE, "python -m tests.rest_page"
        assert "<!-- made: end points -->" in self.PAGE

    def test_it_shows_all_fields(self) -> None:
        shown = rest_page.fields_shown(self.PAGE)
        assert shown >= {point.name for point in END_POINTS if {*point.fields} - {"reason", "limit"}}

    @pytest.mark.django_db
    def test_its_example_is_what_is_sent(self, by_key: Api, lock_up: Any, name: str) -> None:
        found = re.search(r"```json\n(.*?)```", self.PAGE, re.DOTALL)
        assert found is not None
        example = json.loads(found[1])
        lock_up(name)
        sent = by_key.get(reverse("tasklock:locks")).json()
        assert example.keys() == sent.keys()
        assert example["counts"].keys() == sent["counts"].keys()
        assert example["locks"][0].keys() == sent["locks"][0].keys()

    def test_it_names_each_code_and_rate(self) -> None:
        assert not [code for code in get_args(Code) if f"`{code}`" not in self.PAGE]
        assert not [rate for rate in RATES if f'"{rate}"' not in self.PAGE]
