"""``redis+sentinel://`` URLs: the addresses of the Sentinels and the name of the service."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import redis
import redis.sentinel
from django.core.exceptions import ImproperlyConfigured

SCHEMES = ("redis+sentinel://", "rediss+sentinel://")
PORT = 26379
SHAPE = "redis+sentinel://user:password@host:26379,host2:26379/service/0"
_QUERY_PREFIX = "sentinel_"


def sentinel_pool(url: str) -> redis.sentinel.SentinelConnectionPool:
    """Return a pool that follows the primary of the service that a URL names. Raises ``ImproperlyConfigured``.

    User and password of the URL are for the servers. The query may have ``sentinel_username`` and
    ``sentinel_password``, for the Sentinels, and ``min_other_sentinels``, how many other Sentinels one must see for its
    reply to be trusted; all else is as in a ``redis://`` URL. ``rediss+sentinel://`` uses TLS to servers and Sentinels;
    with ``sentinel_ssl=false`` to the servers alone.
    """
    scheme, _, rest = url.partition("://")
    servers = re.split("[/?#]", rest, maxsplit=1)[0]
    # Parsed without the servers: newer Pythons reject an IPv6 address next to another host.
    parts = urlsplit(f"{scheme}://{rest.removeprefix(servers)}")
    tls = scheme == "rediss+sentinel"
    credentials, at, hosts = servers.rpartition("@")
    service, _, database = parts.path.strip("/").partition("/")
    if not service or not (database or "0").isdigit():
        raise ImproperlyConfigured(
            f"TASKLOCK['LOCATION'] must name a service, and may name the number of a database: {SHAPE}"
        )
    query = dict(parse_qsl(parts.query))
    min_others = query.pop("min_other_sentinels", "0")
    if not min_others.isdigit():
        raise ImproperlyConfigured(f"min_other_sentinels in TASKLOCK['LOCATION'] must be a number, not {min_others!r}")
    encrypted = query.pop("sentinel_ssl", "true").lower() not in ("false", "0", "no") and tls
    options = {key.removeprefix(_QUERY_PREFIX): query.pop(key) for key in list(query) if key.startswith(_QUERY_PREFIX)}
    if unknown := set(options) - {"username", "password"}:
        raise ImproperlyConfigured(
            f"TASKLOCK['LOCATION'] has the unknown option {_QUERY_PREFIX}{min(unknown)}: known are sentinel_username,"
            " sentinel_password and sentinel_ssl"
        )
    # redis-py parses the rest, from a URL of a single server.
    single = f"{'rediss' if tls else 'redis'}://{credentials}{at}localhost/{database}?{urlencode(query)}"
    kwargs = dict(redis.ConnectionPool.from_url(single).connection_kwargs)
    del kwargs["host"]
    if encrypted:
        options |= {"ssl": True} | {key: value for key, value in kwargs.items() if key.startswith("ssl_")}
    nodes = [_node(node) for node in hosts.split(",")]
    manager = redis.sentinel.Sentinel(nodes, min_other_sentinels=int(min_others), sentinel_kwargs=options)
    return redis.sentinel.SentinelConnectionPool(unquote(service), manager, ssl=tls, **kwargs)


def _node(text: str) -> tuple[str, int]:
    try:
        node = urlsplit(f"//{text}")
        host, port = node.hostname, node.port
    except ValueError:  # the port is invalid
        host = port = None
    if not host:
        raise ImproperlyConfigured(f"TASKLOCK['LOCATION'] names {text!r}, which is no Sentinel: {SHAPE}")
    return host, port or PORT
