"""What kombu has asked Redis for, and has not read yet.

It fetches with a ``BRPOP``, which waits in the server for a second. A message that is handed to it then has left its
queue, and stands nowhere else until kombu reads the reply. kombu does not read it while the prefetch count is reached,
which a countdown that ends brings about, nor after the worker has been told to stop. So it would wait for as long as
the tasks run, and be lost if the worker is killed meanwhile.
"""

from __future__ import annotations

import contextlib
from queue import Empty
from typing import Any


def always_read(qos: Any) -> None:
    """Let a channel read the reply that it waits for, even if that is one message more than the prefetch count."""
    can_consume = qos.can_consume
    qos.can_consume = lambda: bool(qos.channel._in_poll) or can_consume()


def stop_fetching(consumer: Any) -> None:
    """Cancel a kombu consumer, and put what it had been about to fetch back into its queue. May raise any error."""
    channel = consumer.channel
    consumer.cancel()
    if channel._in_poll and channel._in_poll.can_read(channel.brpop_timeout + 1):
        with contextlib.suppress(Empty):
            channel._brpop_read()  # without a consumer, kombu puts it back
