"""``redis+sentinel://`` URLs: which Sentinels to ask, and for which service."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import redis
import redis.sentinel
from django.core.exceptions import ImproperlyConfigured

SCHEMES = ("redis+sentinel://", "rediss+sentinel://")
PORT = 26379
SHAPE = "redis+sentinel://user:password@host:26379,host2:26379/service/0"
_OURS = "sentinel_"


def sentinel_pool(url: str) -> redis.sentinel.SentinelConnectionPool:
    """Return a pool that follows the primary of the service that a URL names. Raises ``ImproperlyConfigured``.

    User and password are those of the servers. ``sentinel_username`` and ``sentinel_password`` in the query are those
    of the Sentinels, ``min_other_sentinels`` how many others one must know to be believed; all else is as in a
    ``redis://`` URL. ``rediss+sentinel://`` is TLS to servers and Sentinels, ``sentinel_ssl=false``: not to these.
    """
    scheme, _, rest = url.partition("://")
    servers = re.split("[/?#]", rest, maxsplit=1)[0]
    # Without them: newer Pythons take an IPv6 address beside another host for a mistake.
    parts = urlsplit(f"{scheme}://{rest.removeprefix(servers)}")
    tls = scheme == "rediss+sentinel"
    credentials, at, hosts = servers.rpartition("@")
    service, _, database = parts.path.strip("/").partition("/")
    if not service or not (database or "0").isdigit():
        raise ImproperlyConfigured(
            f"TASKLOCK['LOCATION'] must name a service, and may name the number of a database: {SHAPE}"
        )
    query = dict(parse_qsl(parts.query))
    others = query.pop("min_other_sentinels", "0")
    if not others.isdigit():
        raise ImproperlyConfigured(f"min_other_sentinels in TASKLOCK['LOCATION'] must be a number, not {others!r}")
    encrypted = query.pop("sentinel_ssl", "true").lower() not in ("false", "0", "no") and tls
    asking = {key.removeprefix(_OURS): query.pop(key) for key in list(query) if key.startswith(_OURS)}
    if unknown := set(asking) - {"username", "password"}:
        raise ImproperlyConfigured(
            f"TASKLOCK['LOCATION'] has the unknown option {_OURS}{min(unknown)}: known are sentinel_username,"
            " sentinel_password and sentinel_ssl"
        )
    # The rest as redis-py reads it, from a URL of one server.
    single = f"{'rediss' if tls else 'redis'}://{credentials}{at}localhost/{database}?{urlencode(query)}"
    kwargs = dict(redis.ConnectionPool.from_url(single).connection_kwargs)
    del kwargs["host"]
    if encrypted:
        asking |= {"ssl": True} | {key: value for key, value in kwargs.items() if key.startswith("ssl_")}
    nodes = [_node(node) for node in hosts.split(",")]
    manager = redis.sentinel.Sentinel(nodes, min_other_sentinels=int(others), sentinel_kwargs=asking)
    return redis.sentinel.SentinelConnectionPool(unquote(service), manager, ssl=tls, **kwargs)


def _node(text: str) -> tuple[str, int]:
    try:
        node = urlsplit(f"//{text}")
        host, port = node.hostname, node.port
    except ValueError:  # a port that is none
        host = port = None
    if not host:
        raise ImproperlyConfigured(f"TASKLOCK['LOCATION'] names {text!r}, which is no Sentinel: {SHAPE}")
    return host, port or PORT
