"""The broker's index of unacknowledged messages, however the project connects: a prefix, priorities, Sentinel."""

from __future__ import annotations

import json
import math
import signal
import time
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import redis
from kombu import Connection, Consumer, Producer, Queue

from django_tasklock.celery.messages import index as index_module, marks
from django_tasklock.celery.messages.held import fetched_by
from django_tasklock.celery.messages.index import Index, lease_fetched
from django_tasklock.types import monotonic
from tests.support.redis_server import RedisServer
from tests.support.sentinel import SERVICE, watched

LEASE = 60.0


class Fetching:
    """A consumer that has fetched messages and acknowledges none, and an index of its own."""

    def __init__(self, connection: Connection, number: int = 3) -> None:
        self.connection = connection
        queue = Queue("line")
        channel = connection.channel()
        lease_fetched(channel.qos)
        producer = Producer(channel)
        self.messages: list[Any] = []
        consumer = Consumer(channel, [queue], callbacks=[lambda body, message: self.messages.append(message)])
        consumer.consume()
        for each in range(number):
            producer.publish({"number": each}, routing_key="line", declare=[queue], priority=each % 10)
        while len(self.messages) < number:
            connection.drain_events(timeout=10)
        self.index = Index(connection, LEASE, 2)

    def close(self) -> None:
        self.index.close()
        for channel in list(self.connection.transport.channels):
            channel.do_restore = False
        self.connection.release()


def exercise(fetching: Fetching, client: redis.Redis, prefix: str = "") -> None:
    """Renew, let one end, put it back, acknowledge one."""
    name = f"{prefix}unacked_index"
    tags = [message.delivery_tag for message in fetched_by(fetching.connection)]
    assert sorted(tags) == sorted(message.delivery_tag for message in fetching.messages)
    fetched = [at for _, at in client.zrange(name, 0, -1, withscores=True)]
    assert len(fetched) == len(tags)
    assert all(at.is_integer() and abs(time.time() - at) < LEASE / 2 for at in fetched)
    long_ago = float(int(time.time() - 2 * LEASE))
    client.zadd(name, dict.fromkeys(tags, long_ago), xx=True)
    kept, over, done = tags[0], tags[1], tags[2:]
    for message in fetching.messages:
        if message.delivery_tag in done:
            message.ack()
    assert sorted(message.delivery_tag for message in fetched_by(fetching.connection)) == sorted([kept, over])
    fetching.index.renew([kept, *done])
    assert time.time() - client.zscore(name, kept) < LEASE / 2
    assert client.zscore(name, over) == pytest.approx(long_ago)
    assert client.zcard(name) == 2, "what was acknowledged is not revived"
    assert list(fetching.index.lapsed()) == [over]
    fetching.index.restore()
    assert [tag.decode() for tag in client.zrange(name, 0, -1)] == [kept]
    assert sum(client.llen(key) for key in client.keys(f"{prefix}line*")) == 1
    fetching.index.acknowledge(kept)
    assert client.hlen(f"{prefix}unacked") == 0
    fetching.index.write(marks.KEY, "w1", "{}")
    assert fetching.index.read(marks.KEY) == {"w1": "{}"}
    assert client.hgetall(f"{prefix}{marks.KEY}") == {b"w1": b"{}"}
    assert abs(fetching.index.clock_lead()) < 5
    assert fetching.index.uptime() is not None
    fetching.close()


@pytest.mark.redis
@pytest.mark.parametrize("prefix", ["", "site:"])
def test_with_and_without_a_prefix(redis_server: RedisServer, prefix: str) -> None:
    options = {"global_keyprefix": prefix} if prefix else {}
    with redis.Redis.from_url(redis_server.url) as client:
        exercise(Fetching(Connection(redis_server.url, transport_options=options)), client, prefix)


@pytest.mark.redis
def test_what_others_have_fetched_is_rarely_read_and_stays(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred workers look every three seconds, and the others' countdowns are many. All is read once a lease, and
    over each connection, which may be to another server.
    """
    with redis.Redis.from_url(redis_server.url) as client:
        fetching = Fetching(Connection(redis_server.url))
        late, later, last = [message.delivery_tag for message in fetching.messages]
        client.zadd("unacked_index", {f"other {number}": 1000.5 + number for number in range(5000)})
        fetching.index.restore()

        def looked() -> int:
            before = client.info("stats")["total_net_output_bytes"]
            fetching.index.restore()
            return int(client.info("stats")["total_net_output_bytes"]) - before

        assert looked() < 50_000
        now = time.time()
        client.zadd("unacked_index", {late: float(math.ceil(now - LEASE))})
        monkeypatch.setattr(time, "time", lambda: now + 1)
        assert looked() < 50_000
        assert client.llen("line") == 1
        client.zadd("unacked_index", {later: 2000.0})
        fetching.index.close()
        fetching.index.restore()
        assert client.llen("line") == 2
        fetching.index.restore()
        client.zadd("unacked_index", {last: 2000.0})
        monkeypatch.setattr(index_module, "monotonic", lambda: monotonic() + LEASE)
        fetching.index.restore()
        assert client.llen("line") == 3
        assert client.zcard("unacked_index") == 5000
        fetching.close()


@pytest.mark.redis
def test_a_dead_worker_s_many_are_put_back_bit_by_bit(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who does it has messages of its own to renew. The oldest becomes the next."""
    with redis.Redis.from_url(redis_server.url) as client:
        fetching = Fetching(Connection(redis_server.url))
        tags = [message.delivery_tag for message in fetching.messages]
        client.zadd("unacked_index", {tag: 1000.0 + number for number, tag in enumerate(tags)})
        seconds = count()
        monkeypatch.setattr(index_module, "monotonic", lambda: float(next(seconds)))  # the patience is 2 s
        for left in (1, 0):
            fetching.index.restore()
            assert client.zcard("unacked_index") == left
        line = [json.loads(text)["properties"]["delivery_tag"] for text in client.lrange("line", 0, -1)]
        assert line == tags[::-1]
        fetching.close()


def test_sentinel(tmp_path: Path) -> None:
    """Over the primary that it names."""
    with watched(tmp_path) as servers:
        url = f"sentinel://127.0.0.1:{servers.port}/0"
        fetching = Fetching(Connection(url, transport_options={"master_name": SERVICE}))
        with servers.primary() as client:
            exercise(fetching, client)


def test_a_server_that_does_not_answer(redis_server: RedisServer) -> None:
    """It is given up in time, so that the next renewal is not late."""
    fetching = Fetching(Connection(redis_server.url))
    fetching.index.renew([])
    fetching.index.renew(["one"])
    assert redis_server.process is not None
    redis_server.process.send_signal(signal.SIGSTOP)
    try:
        began = time.monotonic()
        with pytest.raises(Exception, match="(?i)time"):
            fetching.index.renew(["one"])
        assert time.monotonic() - began < 8
    finally:
        redis_server.process.send_signal(signal.SIGCONT)
    fetching.index.close()
    fetching.index.renew(["one"])
    fetching.close()
