"""Source 000 as an operator walks through it: its own curl commands against a server that runs."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import threading
from pathlib import Path
from typing import NamedTuple

import pytest
from django.core.handlers.wsgi import WSGIHandler
from django.core.servers.basehttp import ThreadedWSGIServer, WSGIRequestHandler

from django_tasklock import ConcurrencyLimiter, RateLimiter
from django_tasklock.models import AuditEntry
from tests.support.guards import held
from tests.support.rest import KEY
from tests.support.stores import clear

pytest_plugins = ["tests.support.redis_fixtures", "tests.support.rest_fixtures"]


class Said(NamedTuple):
    """What curl got."""

    status: int
    headers: dict[str, str]
    body: str

    def json(self):
        """The body."""
        return json.loads(self.body)


@pytest.fixture
def server():
    """The project behind a real socket: what Django's own ``runserver`` runs."""
    with ThreadedWSGIServer(("127.0.0.1", 0), Quiet) as running:
        running.set_app(WSGIHandler())
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


class Quiet(WSGIRequestHandler):
    """Tells nobody about requests."""

    def log_message(self, format, *args):
        pass


@pytest.fixture
def curl(rest, server):
    """``curl(..., path=...)`` runs the program; it sees what a real server sends."""
    rest(API_KEY_IN_QUERY=True)
    program = shutil.which("curl")
    if program is None:
        pytest.fail("curl is needed: apt-get install curl")

    def run(*arguments: str, path: str) -> Said:
        command = [program, "-sS", "-i", "--max-time", "20", *arguments, f"{server}/api/v1/tasks/{path}"]
        said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
        head, _, body = said.partition("\n\n")
        first, *lines = head.splitlines()
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        return Said(int(first.split()[1]), headers, body)

    return run


@pytest.mark.django_db(transaction=True)
def test_limits(curl):
    """The commands of docs/rest.md, as they stand there."""
    clear("redis")  # a reset leaves the terms that a process had before
    limiter, permits = RateLimiter("tavily", "100/m"), ConcurrencyLimiter("transcode", 3)
    limiter.acquire()
    permits.acquire()
    text = (Path(__file__).parents[2] / "docs" / "rest.md").read_text("utf-8").split("## Limits")[1]
    code = text.split("```bash\n")[1].split("```")[0].replace("$KEY", KEY).replace("8d9221072fa0", member(permits))
    said = []
    for command in code.splitlines():
        _, *words = shlex.split(command)
        [address] = [word for word in words if word.startswith(".../")]
        words.remove(address)
        said.append(curl(*words, path=address.removeprefix(".../")))
    assert [one.status for one in said] == [200, 200, 200, 200]
    looked, changed, reset, released = (one.json() for one in said)
    assert (looked["state"], looked["usage"]["windows"][0]["used"]) == ("open", 1)
    assert (changed["share"], reset["outcome"], released["outcome"]) == (0.5, "reset", "released")
    assert limiter.usage().used == 0
    assert permits.info().used == 0
    reasons = set(AuditEntry.objects.values_list("actor", "reason"))
    assert reasons == {("key grafana", what) for what in ("they ask us to slow down", "new key", "it hangs")}
    assert curl("-H", f"X-API-Key: {KEY}", path="limits/nobody-knows-it").status == 404
    assert curl(path="limits").status == 401


def member(limiter):
    """The fingerprint of who has its only permit."""
    [one] = limiter.info().members
    return one.fingerprint


@pytest.mark.django_db(transaction=True)
class TestSource000:
    @pytest.fixture(autouse=True)
    def _lock_6(self, lock_up):
        self.lock = lock_up("6", timeout=3600)

    def test_a_stuck_lock(self, curl, store):
        """Scenario 3: look at it, look at its time and holder, release it, find it gone."""
        shown = curl(path=f"6/lock?api_key={KEY}")
        assert (shown.status, shown.headers["content-type"]) == (200, "application/json")
        assert shown.headers["cache-control"] == "no-store"
        body = shown.json()
        assert body["name"] == "6"
        assert body["ttl"] == pytest.approx(store.ttl("task_lock:6"), abs=5)
        assert body["holder"]
        assert self.lock.token not in shown.body
        released = curl("-X", "POST", path=f"6/release-lock?api_key={KEY}")
        assert (released.status, released.json()["outcome"]) == (200, "released")
        assert not held("6")
        assert not store.exists("task_lock:6")
        assert curl(path=f"6/lock?api_key={KEY}").status == 404
        assert curl("-X", "POST", path=f"6/release-lock?api_key={KEY}").status == 404
        assert AuditEntry.objects.get(name="6").actor == "key grafana"
