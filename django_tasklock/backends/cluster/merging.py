"""Requests to many buckets at once, sent as one pipeline per node, and the merging of the answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from django_tasklock.backends.cluster.wire import SlotRequest
from django_tasklock.exceptions import BackendUnavailable
from django_tasklock.types import Renewal, RenewalResult

if TYPE_CHECKING:
    from django_tasklock.backends.cluster import ClusterBackend
    from django_tasklock.backends.redis.script import Script


def all_or_raise(replies: Sequence[Any]) -> list[Any]:
    """Return the replies. Raises the first ``BackendUnavailable`` among them."""
    for reply in replies:
        if isinstance(reply, BackendUnavailable):
            raise reply
    return list(replies)


def grouped(store: ClusterBackend, names: Iterable[str]) -> dict[int, list[int]]:
    """Group ``names`` by bucket: return the indexes of the names in each, by the number of the bucket."""
    found: dict[int, list[int]] = {}
    for index, name in enumerate(names):
        found.setdefault(store.number_of(name), []).append(index)
    return found


def renew_all(
    store: ClusterBackend,
    batch: Sequence[Renewal],
    packed: Callable[[int, list[Renewal]], tuple[Script, bytes]],
    read: Callable[[Any], list[RenewalResult]],
) -> list[RenewalResult]:
    """Renew leases at all nodes at once. Raises ``BackendUnavailable`` only if no node has answered."""
    buckets = grouped(store, (item.name for item in batch))
    asks: list[SlotRequest] = []
    for number, indexes in buckets.items():
        asks.append(store.ask(number, *packed(number, [batch[index] for index in indexes])))
    replies = store.try_all(asks, patient=False)  # the heartbeat repeats the request itself
    if replies and all(isinstance(reply, BackendUnavailable) for reply in replies):
        raise replies[0]
    found = [RenewalResult.UNKNOWN] * len(batch)
    for indexes, reply in zip(buckets.values(), replies, strict=True):
        if not isinstance(reply, BackendUnavailable):
            for index, result in zip(indexes, read(reply), strict=True):
                found[index] = result
    return found


def sum_columns(rows: Iterable[Sequence[int]]) -> list[int]:
    """Return the sums of the columns."""
    return [sum(column) for column in zip(*rows, strict=True)]
