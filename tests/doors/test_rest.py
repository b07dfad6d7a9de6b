"""The end points of source 000 over HTTP: what each answers, and that nothing is done to another holder's lock."""

from __future__ import annotations

import subprocess
import sys
from datetime import datetime

import pytest
from django.db import OperationalError, connection
from django.test.client import MULTIPART_CONTENT
from django.urls import reverse

from django_tasklock import StaleClaim, TaskLock, current_lock, get_lock_info, model_lock
from django_tasklock.models import AuditEntry
from django_tasklock.operations.locks import release
from django_tasklock.types import AcquireRequest
from tests.support.guards import GUARD, held, states
from tests.support.proxy import scripts
from tests.support.rest import PREFIX, SECRETS, problem, url
from tests.support.stores import eventually
from tests.testapp.models import Video

pytest_plugins = ["tests.support.redis_fixtures", "tests.support.rest_fixtures"]
pytestmark = pytest.mark.django_db
FORM = "application/x-www-form-urlencoded"


class TestOneLock:
    def test_what_is_told(self, by_key, lock_up, name):
        lock = lock_up(name, lease=60)
        response = by_key.get(url(name))
        assert response.status_code == 200
        # The cache of a whole site keeps what says only "no-store", in earlier releases of Django.
        assert {"no-store", "private"} <= set(response["Cache-Control"].split(", "))
        assert response["Content-Type"] == "application/json"
        body, info = response.json(), get_lock_info(name)
        assert response["ETag"] == f'"{info.fingerprint}"'
        assert lock.token not in response.content.decode()
        assert body["name"] == name
        assert body["state"] == "live"
        assert body["fingerprint"] == info.fingerprint
        assert body["holder"] == info.holder
        assert datetime.fromisoformat(body["acquired_at"]) == info.acquired_at
        assert body["acquired_at"].endswith("Z")
        assert 0 < body["ttl"] <= 60
        assert 0 < body["time_left"] <= 600
        assert body["fence"] == info.fence
        assert (body["waiting"], body["parked"], body["row"]) == (0, 0, None)
        assert all(isinstance(sentence, str) for sentence in body["explanation"])

    @pytest.mark.parametrize(
        "name", ["/begins/and/ends/", "x/release-lock", "任务:六", "a?b#c&d=e+f", "<script>1", ".."]
    )
    def test_any_name(self, by_key, lock_up, name):
        """Markup in a name is data: gold standard 8.42."""
        lock_up(name)
        path = reverse("tasklock:lock", args=[name])
        for spelt in (path, url(name)):
            response = by_key.get(spelt)
            assert (response.status_code, response.json()["name"]) == (200, name)
            assert response["Content-Type"] == "application/json"
        assert name in [lock["name"] for lock in by_key.get(PREFIX + "locks", {"text": name}).json()["locks"]]
        released = by_key.post(reverse("tasklock:release-lock", args=[name]))
        assert (released.status_code, released.json()["name"]) == (200, name)
        assert not held(name)

    @pytest.mark.parametrize("end", ["lock", "release-lock", "ask-release"])
    def test_one_that_is_free_and_one_that_cannot_be(self, by_key, name, end):
        ask = by_key.get if end == "lock" else by_key.post
        assert problem(ask(url(name, end)), 404, "not_locked")
        for wrong in ("x" * 201, "line\nbreak", "task_lock:", "\x00"):
            assert problem(ask(url(wrong, end)), 400, "invalid_name")

    def test_a_value_that_somebody_set_by_hand(self, by_key, store, name):
        """As ``redis-cli SET`` leaves it: gold standard 8.44."""
        store.set(f"task_lock:{name}", "by hand")
        response = by_key.get(url(name))
        assert (response.status_code, response["ETag"]) == (200, '""')
        assert response.json()["ttl"] is None
        nobody = by_key.post(url(name, "ask-release"))
        assert (nobody.status_code, nobody.json()["code"]) == (409, "nobody_to_ask")
        assert by_key.post(url(name, "release-lock"), headers={"if-match": '""'}).status_code == 200
        assert not store.exists(f"task_lock:{name}")


class TestRelease:
    def test_it_is_released_and_written_down(self, by_key, lock_up, name):
        lock = lock_up(name)
        response = by_key.post(url(name, "release-lock"), {"reason": "worker gone"}, content_type="application/json")
        assert response.status_code == 200
        body = response.json()
        assert (body["name"], body["outcome"], body["fenced"]) == (name, "released", False)
        assert body["before"]["name"] == name
        assert lock.token not in response.content.decode()
        assert not held(name)
        entry = AuditEntry.objects.get(name=name)
        assert (entry.actor, entry.user_id, entry.reason) == ("key grafana", "", "worker gone")
        assert entry.outcome.startswith("released")

    def test_the_holder_is_only_asked(self, by_key, lock_up, name):
        lock = lock_up(name)
        response = by_key.post(
            url(name, "ask-release"), {"reason": "deploy"}, headers={"if-match": by_key.get(url(name))["ETag"]}
        )
        assert (response.status_code, response.json()["outcome"]) == (200, "asked")
        assert lock.owned()
        assert by_key.get(url(name)).json()["asked_for"] >= 0
        entry = AuditEntry.objects.get(name=name)
        assert (entry.actor, entry.reason, entry.outcome.split(";")[0]) == ("key grafana", "deploy", "asked")

    @pytest.mark.parametrize("form", ['"{}"', 'W/"{}"', "{}", "*"])
    def test_if_match_of_the_holder_and_of_no_holder(self, by_key, lock_up, name, form):
        lock = lock_up(name)
        for wrong in ('""', "", '"000000000000"', "é"):
            problem(by_key.post(url(name, "release-lock"), headers={"if-match": wrong}), 412, "changed_hands")
        assert lock.owned()
        tag = form.format(get_lock_info(name).fingerprint)
        assert by_key.post(url(name, "release-lock"), headers={"if-match": tag}).status_code == 200
        assert not lock.owned()

    def test_changed_hands_between_get_and_post(self, by_key, lock_up, name):
        """The release button never hits a newer holder: gold standard 8.43."""
        first = lock_up(name)
        seen = by_key.get(url(name))["ETag"]
        first.release()
        second = lock_up(name)
        for end in ("release-lock", "ask-release"):
            response = by_key.post(url(name, end), headers={"if-match": seen})
            assert name in problem(response, 412, "changed_hands")
        assert second.owned()
        assert not by_key.get(url(name)).json()["asked_for"]
        second.release()
        response = by_key.post(url(name, "release-lock"), headers={"if-match": seen})
        assert problem(response, 404, "not_locked")

    @pytest.mark.parametrize("end", ["release-lock", "ask-release"])
    @pytest.mark.parametrize("tagged", [True, False])
    def test_taken_over_between_the_look_and_the_act(self, proxy, rest, by_key, lock_up, name, another, tagged, end):
        """Whoever came in between keeps the lock, and the caller is told."""
        rest(LOCATION=proxy.url)
        tag = f'"{lock_up(name).tag}"'
        elsewhere = another()

        def happen():
            elsewhere.remove(name)
            elsewhere.acquire(AcquireRequest(name, "the-new-one", 60_000, 60_000))

        fault = proxy.fault(scripts("get"), then=happen)
        response = by_key.post(url(name, end), headers={"if-match": tag if tagged else "*"})
        assert fault.met
        problem(response, 412 if tagged else 409, "changed_hands")
        record = elsewhere.remove(name)
        assert (record.token, record.asked) == ("the-new-one", 0)

    @pytest.mark.database
    def test_the_guarded_row_is_fenced(self, by_key, name):
        video = Video.objects.create()
        seen = {}

        @model_lock(Video, name + ":{pk}", guard=GUARD)
        def work(pk):
            full = f"{name}:{pk}"
            SECRETS.add(current_lock().token)
            seen["row"] = by_key.get(url(full)).json()["row"]
            for wrong in ("no such state", 7, ["processing"]):
                assert by_key.post(url(full, "release-lock"), {"row_state": wrong}).status_code == 400
            assert states(video) == ("processing", 0, 1)
            response = by_key.post(url(full, "release-lock"), {"row_state": "failed"})
            seen["done"] = response.status_code, response.json()["fenced"]

        with pytest.raises(StaleClaim):
            work(video.pk)
        row = seen["row"]
        assert (row["model"], row["pk"], row["state"]) == ("testapp.video", str(video.pk), "processing")
        assert (row["agrees"], row["fenced"], row["epoch"]) == (True, True, 1)
        assert "failed" in row["states"]
        assert seen["done"] == (200, True)
        assert states(video) == ("failed", 0, 2)

    @pytest.mark.parametrize(
        ("body", "kind"),
        [
            ("{", "application/json"),
            ("[]", "application/json"),
            ("[" * 100_000, "application/json"),
            ('{"reason": "' + "x" * 1001 + '"}', "application/json"),
            ('{"reason": "\\u0000"}', "application/json"),
            (b'{"reason": "\xff"}', "application/json"),
            ("reason=%00", FORM),
            ('{"resaon": "x"}', "application/json"),
            ("resaon=x", FORM),
        ],
    )
    def test_a_body_that_cannot_be_read_or_has_a_field_that_is_none(self, by_key, lock_up, name, body, kind):
        lock = lock_up(name)
        for end in ("release-lock", "ask-release"):
            response = by_key.post(url(name, end), body, content_type=kind)
            told = problem(response, 400, "unknown_field" if "resaon" in str(body) else response.json()["code"])
            assert "resaon" not in told or "'reason'" in told
        assert lock.owned()

    def test_bodies_that_are_read(self, by_key, lock_up, settings, name):
        """None, a form, and nothing that is too long."""
        settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 1000
        lock = lock_up(name)
        assert by_key.post(url(name, "release-lock"), {}, content_type=MULTIPART_CONTENT).status_code == 415
        long = "reason=" + "x" * 900
        problem(by_key.post(url(name, "release-lock"), long + " " * 200, FORM), 413, "too_large")
        assert lock.owned()
        assert by_key.post(url(name, "release-lock"), "reason=by+curl", FORM).status_code == 200
        lock.release()
        lock_up(name)
        assert by_key.post(url(name, "release-lock")).status_code == 200
        assert sorted(AuditEntry.objects.filter(name=name).values_list("reason", flat=True)) == ["", "by curl"]

    def test_row_is_fenced_for_all_to_see_before_the_lock_is_given_away(self, by_key, lock_up, name, monkeypatch):
        """Outside ATOMIC_REQUESTS, whatever the project has."""
        open_ = []
        depth = len(connection.savepoint_ids)
        monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
        monkeypatch.setattr(release, "find_locked_row", lambda record: open_.append(len(connection.savepoint_ids)))
        lock_up(name)
        assert by_key.post(url(name, "release-lock")).status_code == 200
        assert open_ == [depth]

    def test_the_rows_database_is_down(self, by_key, lock_up, name, monkeypatch):
        """The lock stays where it is: 503, not 500."""
        video = Video.objects.create()
        told = []

        @model_lock(Video, name + ":{pk}", guard=GUARD)
        def work(pk):
            with monkeypatch.context() as patch:
                patch.setattr(release, "revoke_claim", down)
                told.append(by_key.post(url(f"{name}:{pk}", "release-lock")))
            assert held(f"{name}:{pk}")

        def down(*args):
            raise OperationalError("connection to server at 10.0.0.7 failed")

        work(video.pk)
        assert "10.0.0.7" not in problem(told[0], 503, "database_unavailable")
        assert told[0]["Retry-After"]
        assert states(video)[0] == "ready"


class TestList:
    def test_page_by_page(self, by_key, lock_up, name):
        for number in range(5):
            lock_up(f"{name}:{number}", timeout=600 + number)
        told, offset, pages = [], 0, 0
        while offset is not None:
            page = by_key.get(PREFIX + "locks", {"text": name, "limit": 2, "offset": offset}).json()
            told += [lock["name"] for lock in page["locks"]]
            offset, pages = page["next"], pages + 1
            assert len(page["locks"]) <= 2
        assert told == [f"{name}:{number}" for number in range(5)]
        assert pages >= 3
        assert page["total"] >= 5
        assert page["counts"]["live"] == page["total"]
        assert page["counts"].keys() == {"live", "expiring", "no_expiry", "orphaned", "dead"}

    def test_an_orphaned_one_is_listed_and_is_free(self, by_key, stranger, name):
        stranger.acquire(AcquireRequest(name, "whoever-died", 50, 50))
        listed = {"state": "orphaned", "text": name}
        [found] = eventually(lambda: by_key.get(PREFIX + "locks", listed).json()["locks"])
        assert (found["name"], found["state"]) == (name, "orphaned")
        assert found["lapsed_for"] >= 0
        assert problem(by_key.get(url(name)), 404, "not_locked")

    def test_parameters_that_cannot_be(self, by_key):
        wrong = {"limit": "0", "offset": "-1", "state": "gone", "order": "name", "waiting": "perhaps", "text": "\x00"}
        for field, value in wrong.items():
            told = problem(by_key.get(PREFIX + "locks", {field: value}), 400, "invalid")
            assert told.startswith(f"{field}: ")

    def test_a_cache_cannot_list(self, by_key, rest, settings, name):
        rest(BACKEND="django_tasklock.backends.cache.CacheBackend", LOCATION="locmem")
        assert "list" in problem(by_key.get(PREFIX + "locks"), 501, "cannot_list")
        with TaskLock(name):
            assert by_key.get(url(name)).status_code == 200


class TestStoreDown:
    def test_it_may_have_been_done_all_the_same(self, proxy, rest, by_key, lock_up, name, stranger):
        rest(LOCATION=proxy.url)
        lock_up(name)
        proxy.lose_reply(scripts("remove"), times=-1)
        told = problem(by_key.post(url(name, "release-lock")), 503, "store_unavailable")
        assert "nevertheless" in told
        assert stranger.get(name) is None


def test_without_the_extra_one_sentence_says_what_to_install():
    program = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "rest_framework":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing())
import django_tasklock
try:
    import django_tasklock.rest.urls
except ImportError as error:
    print(error)
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert said.stdout.strip() == (
        "django_tasklock.rest needs rest_framework, which is not installed: pip install 'django-tasklock[rest]'"
    )
