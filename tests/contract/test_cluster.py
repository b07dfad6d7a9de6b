"""Locks in a Redis Cluster: where they lie, where the cluster is found, what a verb costs."""

from __future__ import annotations

import time
from collections import Counter

import pytest
from django.core.exceptions import ImproperlyConfigured
from redis.crc import key_slot

from django_tasklock import BackendUnavailable
from django_tasklock.backends.cluster import ClusterBackend
from django_tasklock.backends.cluster.buckets import BUCKETS, buckets_of, number_of
from django_tasklock.backends.cluster.location import urls_of
from django_tasklock.conf import Settings
from django_tasklock.types import Busy, Released, Renewal, RenewalResult
from tests.support.cluster import SLOTS
from tests.support.cluster_acts import scripts, slot_of
from tests.support.redis_server import free_port
from tests.support.stores import an_ask, granted
from tests.support.twins import TWINS, call

pytest_plugins = ["tests.support.cluster_fixtures"]
pytestmark = pytest.mark.redis


class TestBuckets:
    def test_their_slots_are_spread_evenly_whoever_serves_which_part(self):
        buckets = buckets_of("task_lock:")
        assert [bucket.slot // (SLOTS // BUCKETS) for bucket in buckets] == list(range(BUCKETS))
        assert all(key_slot(f"{bucket.prefix}video:1".encode()) == bucket.slot for bucket in buckets)
        for nodes in (3, 6, 16):
            shares = Counter(bucket.slot * nodes // SLOTS for bucket in buckets)
            assert max(shares.values()) - min(shares.values()) <= 1

    def test_names_are_spread_evenly(self):
        shares = Counter(number_of(f"video:{number}", BUCKETS) for number in range(100_000))
        assert len(shares) == BUCKETS
        assert max(shares.values()) < 1.3 * 100_000 / BUCKETS

    def test_where_a_name_lies_never_changes(self):
        """Processes that differ in it would find each other's locks free."""
        found = [(name, number_of(name, BUCKETS)) for name in ("", "video:42", "ä", "{video}:1")]
        assert found == [("", 0), ("video:42", 155), ("ä", 182), ("{video}:1", 191)]
        assert [buckets_of("task_lock:")[place].prefix for place in (0, 155)] == [
            "{task_lock.67}:", "{task_lock.43}:",
        ]  # fmt: skip

    def test_a_prefix_with_a_tag_is_one_bucket(self):
        (bucket,) = buckets_of("{mine}:")
        assert (bucket.prefix, bucket.slot) == ("{mine}:", key_slot(b"mine"))

    @pytest.mark.parametrize("prefix", ["{}:", "a}b:", "{a:"])
    def test_braces_that_are_no_tag(self, prefix):
        with pytest.raises(ImproperlyConfigured, match="braces"):
            buckets_of(prefix)


class TestLocation:
    def test_several_nodes_a_password_and_options(self):
        assert urls_of("rediss+cluster://me:a%40b@one:1,two/0?ssl_ca_certs=x") == [
            "rediss://me:a%40b@one:1/0?ssl_ca_certs=x",
            "rediss://me:a%40b@two/0?ssl_ca_certs=x",
        ]

    @pytest.mark.parametrize("location", ["redis+cluster://", "redis+cluster://a,,b", "redis://a", "cluster"])
    def test_what_names_no_nodes(self, location):
        with pytest.raises(ImproperlyConfigured, match="does not name nodes"):
            ClusterBackend(Settings(LOCATION=location))

    @pytest.mark.parametrize("location", ["redis+cluster://me:secret@a/1", "redis+cluster://me:secret@a:b"])
    def test_a_database_or_a_port_that_is_none(self, location):
        with pytest.raises(ImproperlyConfigured) as caught:
            ClusterBackend(Settings(LOCATION=location))
        assert "secret" not in str(caught.value)

    def test_the_backend_that_it_means(self, settings, cluster):
        from django_tasklock.backends import get_backend

        settings.TASKLOCK = {"LOCATION": cluster.url}
        assert type(get_backend()) is ClusterBackend

    @TWINS
    def test_a_node_to_start_from_may_be_away(self, cluster, way):
        url = f"redis+cluster://127.0.0.1:{free_port()},127.0.0.1:{cluster.primaries[1].port}"
        backend = ClusterBackend(Settings(LOCATION=url))
        granted(call(way, backend, "acquire", an_ask("video:1")))
        backend.close()

    @TWINS
    def test_an_unreachable_cluster_is_unavailable_in_time(self, way):
        backend = ClusterBackend(Settings(LOCATION=f"redis+cluster://127.0.0.1:{free_port()}"))
        began = time.monotonic()
        with pytest.raises(BackendUnavailable) as caught:
            call(way, backend, "acquire", an_ask("video:1"))
        assert caught.value.down
        assert time.monotonic() - began < 20

    def test_a_server_that_is_no_cluster(self, redis_server):
        backend = ClusterBackend(Settings(LOCATION=redis_server.url.replace("redis://", "redis+cluster://")[:-2]))
        with pytest.raises(BackendUnavailable, match="cluster support disabled") as caught:
            backend.acquire(an_ask("video:1"))
        assert not caught.value.down
        backend.close()


class TestTrips:
    @TWINS
    def test_a_verb_on_one_name_is_one_trip_to_one_node(self, cluster, backend, way):
        names = [f"video:{number}" for number in range(30)]
        for name in names:  # the scripts are known then
            mine = an_ask(name)
            granted(call(way, backend, "acquire", mine))
            call(way, backend, "release", name, mine.token)
        before = scripts(cluster)
        for name in names:
            mine = an_ask(name)
            granted(call(way, backend, "acquire", mine))
            assert call(way, backend, "release", name, mine.token) is Released.RELEASED
        each = [after - earlier for after, earlier in zip(scripts(cluster), before, strict=True)]
        assert sum(each) == 60
        assert min(each) >= 8

    def test_a_hundred_renewals_are_a_script_for_each_bucket_and_a_packet_for_each_node(self, cluster, backend):
        asks = [an_ask(f"video:{number}") for number in range(100)]
        for ask in asks:
            granted(backend.acquire(ask))
        batch = [Renewal(ask.name, ask.token, 50_000) for ask in asks]
        backend.renew(batch)
        before = scripts(cluster)
        assert backend.renew(batch) == [RenewalResult.RENEWED] * 100
        assert sum(scripts(cluster)) - sum(before) == len({slot_of(ask.name) for ask in asks})

    def test_names_with_braces_are_names(self, cluster, backend):
        for name in ("video:{x}", "{", "}{", "{task_lock}"):
            mine = an_ask(name)
            granted(backend.acquire(mine))
            assert isinstance(backend.acquire(an_ask(name)), Busy)
            assert [record.name for record in backend.records()] == [name]
            assert backend.release(name, mine.token) is Released.RELEASED
