"""Fixtures for tests that do things to a Redis Cluster: ``pytest_plugins = ["tests.support.cluster_fixtures"]``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from django_tasklock.backends.redis import RedisBackend
from django_tasklock.conf import Settings
from tests.support.cluster import Cluster, clustered


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of this module's own: its slots are moved."""
    with clustered(tmp_path_factory.mktemp("cluster")) as found:
        yield found


@pytest.fixture
def cluster(servers: Cluster) -> Cluster:
    """The same, empty."""
    servers.flush()
    return servers


@pytest.fixture
def backend(cluster: Cluster) -> Iterator[RedisBackend]:
    """As one process has it."""
    found = RedisBackend(Settings(LOCATION=cluster.url))
    yield found
    found.close()


@pytest.fixture
def other(cluster: Cluster) -> Iterator[RedisBackend]:
    """As another process has it."""
    found = RedisBackend(Settings(LOCATION=cluster.url))
    yield found
    found.close()
