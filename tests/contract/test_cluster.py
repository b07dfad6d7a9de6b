"""Locks in a Redis Cluster: where they lie, where the cluster is found, what a verb costs."""

from __future__ import annotations

import time

import pytest
import redis
from django.core.exceptions import ImproperlyConfigured
from redis.crc import key_slot

from django_tasklock import BackendUnavailable, TaskLock
from django_tasklock.backends.redis import RedisBackend
from django_tasklock.backends.redis.client import Client
from django_tasklock.conf import Settings
from django_tasklock.types import Busy, Released
from tests.support.cluster_acts import SLOT, key_of, scripts
from tests.support.redis_server import free_port
from tests.support.stores import an_ask, granted
from tests.support.twins import TWINS, call

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
        granted(backend.permits.acquire(an_ask("transcode")._replace(limit=1)))
        found = keys_of(cluster)
        waiter.leave()
        assert key_of("video:1").encode() in found
        assert len(found) > 6
        assert {key_slot(key) for key in found} == {SLOT}

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

    @TWINS
    def test_a_node_to_start_from_may_be_away(self, cluster, way):
        url = f"redis+cluster://127.0.0.1:{free_port()},127.0.0.1:{cluster.primaries[1].port}"
        backend = RedisBackend(Settings(LOCATION=url))
        granted(call(way, backend, "acquire", an_ask("video:1")))
        backend.close()

    @TWINS
    def test_an_unreachable_cluster_is_unavailable_in_time(self, way):
        backend = RedisBackend(Settings(LOCATION=f"redis+cluster://127.0.0.1:{free_port()}"))
        began = time.monotonic()
        with pytest.raises(BackendUnavailable) as caught:
            call(way, backend, "acquire", an_ask("video:1"))
        assert caught.value.down
        assert time.monotonic() - began < 20

    def test_a_server_that_is_no_cluster(self, redis_server):
        backend = RedisBackend(Settings(LOCATION=redis_server.url.replace("redis://", "redis+cluster://")[:-2]))
        with pytest.raises(BackendUnavailable, match="cluster support disabled") as caught:
            backend.acquire(an_ask("video:1"))
        assert not caught.value.down
        backend.close()


class TestTrips:
    @TWINS
    def test_a_verb_is_one_trip_to_one_node(self, cluster, backend, way):
        names = [f"video:{number}" for number in range(30)]
        for name in names[:2]:  # the scripts are known then
            mine = an_ask(name)
            granted(call(way, backend, "acquire", mine))
            call(way, backend, "release", name, mine.token)
        before = scripts(cluster)
        for name in names:
            mine = an_ask(name)
            granted(call(way, backend, "acquire", mine))
            assert call(way, backend, "release", name, mine.token) is Released.RELEASED
        each = [after - earlier for after, earlier in zip(scripts(cluster), before, strict=True)]
        assert sorted(each) == [0, 0, 60]


class TestLostReplies:
    @pytest.fixture
    def lose_the_next(self, monkeypatch):
        """A function: the next script is executed, and its reply is lost with the connection."""
        exchange = Client.exchange

        def losing(self, *request):
            monkeypatch.setattr(Client, "exchange", exchange)
            exchange(self, *request)
            raise redis.ConnectionError("Connection closed by server.")

        return lambda: monkeypatch.setattr(Client, "exchange", losing)

    def test_a_removal_is_not_sent_again(self, backend, lose_the_next):
        """It could take the lock of the next holder."""
        granted(backend.acquire(an_ask("video:1")))
        lose_the_next()
        with pytest.raises(BackendUnavailable) as caught:
            backend.remove("video:1")
        assert caught.value.doubt
        assert backend.get("video:1") is None
