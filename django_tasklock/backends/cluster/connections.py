"""What the store of one bucket asks through: the connections to whoever serves its slot."""

from __future__ import annotations

from django_tasklock.backends.cluster.nodes import Nodes
from django_tasklock.backends.cluster.wire import ClusterWire, SlotSubscribers, SlotWire
from django_tasklock.backends.cluster.wire_async import SlotAio
from django_tasklock.backends.redis.acknowledged import Acknowledged
from django_tasklock.backends.redis.connections import Asking, AsyncAsking, Listening


class SlotConnections:
    """The connections of all buckets, for one of them."""

    def __init__(self, nodes: Nodes, wire: ClusterWire, slot: int, replicas: int = 0) -> None:
        acknowledged = Acknowledged(replicas) if replicas else None
        self._wire = SlotWire(wire, slot, acknowledged)
        self._subscribers = SlotSubscribers(nodes, slot)
        self._aio = SlotAio(nodes, slot, acknowledged)

    @property
    def wire(self) -> Asking:
        """The connections of this process's threads."""
        return self._wire

    @property
    def subscribers(self) -> Listening:
        """The connections on which this process's threads wait."""
        return self._subscribers

    @property
    def aio(self) -> AsyncAsking:
        """The connections of this process's event loops."""
        return self._aio

    def close(self) -> None:
        """Close nothing: they are those of the other buckets as well."""
