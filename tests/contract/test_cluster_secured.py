"""A Redis Cluster that wants TLS and a password, and whose replicas acknowledge: real servers, not a proxy."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from django_tasklock import BackendUnavailable, TaskLock, list_all_task_locks
from django_tasklock.checks.deploy import check_store
from tests.support.cluster import Cluster, clustered
from tests.support.cluster_acts import SLOT, key_of
from tests.support.redis_server import find, free_port
from tests.support.tls import self_signed

pytest_plugins = ["tests.support.redis_fixtures"]
pytestmark = pytest.mark.slow  # not repeated on each Redis: not all that there are to unpack know TLS

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
    directory = tmp_path_factory.mktemp("cluster")
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


@pytest.fixture
def cluster(secured: Secured, configure: Any) -> Cluster:
    """The same, empty, and set up."""
    secured.cluster.flush()
    configure(LOCATION=secured.url())
    return secured.cluster


def test_locks(cluster: Cluster) -> None:
    locks = [TaskLock(name, lease=30) for name in NAMES]
    for lock in locks:
        assert lock.acquire()
    assert {info.name for info in list_all_task_locks()} == set(NAMES)
    for lock in locks:
        lock.ensure_held()
        assert cluster.serving(SLOT).client.get(key_of(lock.name))
        assert lock.release()
    assert list_all_task_locks() == []


def test_the_check_has_nothing_to_say_against_it(cluster: Cluster) -> None:
    assert check_store() == []


@pytest.mark.parametrize(
    "wrong", [{"password": "guessed"}, {"user": "nobody"}, {"trusted": False}], ids=["password", "user", "certificate"]
)
def test_an_authentication_error_does_not_contain_the_password(secured: Secured, configure: Any, wrong: Any) -> None:
    configure(LOCATION=secured.url(**wrong))
    with pytest.raises(BackendUnavailable) as caught:
        TaskLock(NAMES[0], on_unavailable="raise").acquire()
    for secret in ("guessed", "s3cr3t"):
        assert secret not in str(caught.value)
