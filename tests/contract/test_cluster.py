"""Locks in a Redis Cluster: where they lie, where the cluster is found and as whom, what a verb costs."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from django.core.exceptions import ImproperlyConfigured
from redis.crc import key_slot

from django_tasklock import BackendUnavailable, TaskLock, list_all_task_locks
from django_tasklock.backends.redis import RedisBackend
from django_tasklock.backends.redis.client import Client
from django_tasklock.checks.deploy import check_store
from django_tasklock.conf import Settings
from django_tasklock.types import Busy, Released
from tests.support.cluster import Cluster, clustered
from tests.support.cluster_acts import SLOT, key_of, scripts
from tests.support.redis_server import find, free_port
from tests.support.stores import an_ask, granted
from tests.support.tls import self_signed

pytest_plugins = ["tests.support.cluster_fixtures", "tests.support.redis_fixtures"]
pytestmark = pytest.mark.redis


def keys_of(cluster):
    """All keys that there are."""
    return {key for node in cluster.primaries for key in node.client.scan_iter()}


class TestKeys:
    def test_all_are_in_the_slot_of_the_prefix(self, cluster, backend):
        """What each verb writes: of locks, of those who wait, of messages, of permits."""
        granted(backend.acquire(an_ask("video:1")))
        waiter = backend.waiter(an_ask("video:1"))
        assert isinstance(waiter.acquire(), Busy)
        backend.next_number("video:1", "a message")
        backend.set_flag("video:1")
        backend.release_and_mark("video:1", "another", "done:1", 60_000, clear=False)
        granted(backend.permits.acquire(an_ask("transcode")._replace(limit=1)))
        found = keys_of(cluster)
        waiter.leave()
        assert key_of("video:1").encode() in found
        assert len(found) > 7
        assert {key_slot(key) for key in found} == {SLOT}

    def test_a_scan_finds_what_other_code_has_set(self, cluster, backend):
        cluster.serving(SLOT).client.set(key_of("by-hand"), "x")
        assert (backend.scan(), backend.scan()) == (1, 0)
        assert [record.name for record in backend.records()] == ["by-hand"]

    @pytest.mark.parametrize("prefix", ["task_lock:", "{task_lock}:"])
    def test_the_prefix_has_a_tag_and_is_not_put_before_a_name_twice(self, cluster, configure, prefix):
        configure(LOCATION=cluster.url, KEY_PREFIX=prefix)
        lock = TaskLock("{task_lock}:video:1")
        assert lock.acquire()
        assert lock.name == "video:1"
        assert cluster.serving(SLOT).client.get("{task_lock}:video:1")
        assert TaskLock(f"{prefix}video:1").name == "video:1"
        assert lock.release()

    def test_a_tag_of_your_own(self, cluster):
        backend = RedisBackend(Settings(LOCATION=cluster.url, KEY_PREFIX="{mine}:locks:"))
        granted(backend.acquire(an_ask("video:1")))
        backend.close()
        assert cluster.serving(key_slot(b"mine")).client.get("{mine}:locks:video:1")

    @pytest.mark.parametrize("prefix", ["{}:", "a}b:", "{a:"])
    def test_braces_that_are_no_tag(self, prefix):
        with pytest.raises(ImproperlyConfigured, match="braces"):
            RedisBackend(Settings(LOCATION="redis+cluster://localhost", KEY_PREFIX=prefix))


class TestLocation:
    @pytest.mark.parametrize("location", ["redis+cluster://", "redis+cluster://a,,b", "rediss+cluster://:6379,"])
    def test_what_names_no_nodes(self, location):
        with pytest.raises(ImproperlyConfigured, match="does not name nodes"):
            RedisBackend(Settings(LOCATION=location))

    def test_a_node_to_start_from_may_be_away(self, cluster):
        url = f"redis+cluster://127.0.0.1:{free_port()},127.0.0.1:{cluster.primaries[1].port}"
        backend = RedisBackend(Settings(LOCATION=url))
        granted(backend.acquire(an_ask("video:1")))
        backend.close()

    def test_an_unreachable_cluster_is_unavailable_in_time(self):
        backend = RedisBackend(Settings(LOCATION=f"redis+cluster://127.0.0.1:{free_port()}"))
        began = time.monotonic()
        with pytest.raises(BackendUnavailable) as caught:
            backend.acquire(an_ask("video:1"))
        assert caught.value.down
        assert time.monotonic() - began < 20

    def test_a_server_that_is_no_cluster(self, redis_server):
        backend = RedisBackend(Settings(LOCATION=redis_server.url.replace("redis://", "redis+cluster://")[:-2]))
        with pytest.raises(BackendUnavailable, match="cluster support disabled") as caught:
            backend.acquire(an_ask("video:1"))
        assert not caught.value.down
        backend.close()


def test_a_verb_is_one_trip_to_one_node(cluster, backend):
    names = [f"video:{number}" for number in range(30)]
    for name in names[:2]:  # the scripts are known then
        mine = an_ask(name)
        granted(backend.acquire(mine))
        backend.release(name, mine.token)
    before = scripts(cluster)
    for name in names:
        mine = an_ask(name)
        granted(backend.acquire(mine))
        assert backend.release(name, mine.token) is Released.RELEASED
    each = [after - earlier for after, earlier in zip(scripts(cluster), before, strict=True)]
    assert sorted(each) == [0, 0, 60]


def test_a_removal_whose_reply_is_lost_is_not_sent_again(backend, monkeypatch):
    """It could take the lock of the next holder."""
    granted(backend.acquire(an_ask("video:1")))
    exchange = Client.exchange

    def losing(self, *request):
        monkeypatch.setattr(Client, "exchange", exchange)
        exchange(self, *request)
        raise redis.ConnectionError("Connection closed by server.")

    monkeypatch.setattr(Client, "exchange", losing)
    with pytest.raises(BackendUnavailable) as caught:
        backend.remove("video:1")
    assert caught.value.doubt
    assert backend.get("video:1") is None


# --- TLS and a password: real servers, not a proxy

USER, PASSWORD = "locks", "s3cr3t/of:locks"
RIGHTS = "~{task_lock}* &{task_lock}* +@read +@write +@scripting +@pubsub +@connection +time"
NAMES = ["video:1", "video:2"]


class Secured:
    """A cluster, and what it takes to be let in."""

    def __init__(self, cluster: Cluster, certificate: Path) -> None:
        self.cluster = cluster
        self.certificate = certificate

    def url(self, user: str = USER, password: str = "s3cr3t%2Fof%3Alocks", trusted: bool = True) -> str:
        """As ``LOCATION`` has it."""
        query = f"?ssl_ca_certs={self.certificate}" if trusted else ""
        return self.cluster.url.replace("redis+cluster://", f"rediss+cluster://{user}:{password}@") + query


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """Three primaries with a replica each, on TLS alone, with a user for the locks."""
    if not knows_tls():
        pytest.skip("this redis-server was built without TLS")
    directory = tmp_path_factory.mktemp("secured")
    certificate, _ = self_signed(directory)
    options = [
        "--port", "0", "--tls-port", "{port}", "--tls-cluster", "yes", "--tls-replication", "yes",
        "--tls-cert-file", str(certificate), "--tls-key-file", str(directory / "key.pem"),
        "--tls-ca-cert-file", str(certificate), "--tls-auth-clients", "no",
        "--requirepass", "of the operators", "--masterauth", "of the operators",
    ]  # fmt: skip
    client: dict[str, Any] = {"ssl": True, "ssl_ca_certs": str(certificate), "password": "of the operators"}
    with clustered(directory, 3, 1, options, host="127.0.0.1", **client) as cluster:
        for node in cluster.nodes:
            node.client.execute_command("ACL", "SETUSER", USER, "on", f">{PASSWORD}", *RIGHTS.split(), "+cluster|slots")
        yield Secured(cluster, certificate)


def knows_tls() -> bool:
    """Whether the server was built with it. Without a certificate it ends at once in any case, and says why."""
    command = [find(), "--port", "0", "--tls-port", str(free_port()), "--dir", "/"]
    ran = subprocess.run(command, capture_output=True, check=False, timeout=30)
    said = ran.stdout + ran.stderr
    return b"FATAL CONFIG" not in said and b"finding TLS support" not in said


@pytest.mark.slow
def test_locks_behind_tls_and_a_password(secured: Secured, configure: Any) -> None:
    configure(LOCATION=secured.url())
    assert check_store() == []
    locks = [TaskLock(name, lease=30) for name in NAMES]
    for lock in locks:
        assert lock.acquire()
    assert {info.name for info in list_all_task_locks()} == set(NAMES)
    for lock in locks:
        lock.ensure_held()
        assert secured.cluster.serving(SLOT).client.get(key_of(lock.name))
        assert lock.release()
    assert list_all_task_locks() == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "wrong", [{"password": "guessed"}, {"user": "nobody"}, {"trusted": False}], ids=["password", "user", "certificate"]
)
def test_an_authentication_error_does_not_contain_the_password(secured: Secured, configure: Any, wrong: Any) -> None:
    configure(LOCATION=secured.url(**wrong))
    with pytest.raises(BackendUnavailable) as caught:
        TaskLock(NAMES[0], on_unavailable="raise").acquire()
    for secret in ("guessed", "s3cr3t"):
        assert secret not in str(caught.value)
