"""Harm to a majority's instances, and to the way to them."""

from __future__ import annotations

import random
import signal
import time

from tests.support.proxy import Proxy
from tests.support.redis_server import RedisServer

__all__ = ["harm"]


def harm(servers: list[RedisServer], proxies: list[Proxy], number: int, longest: float) -> None:
    """Do something to so many of them, and undo it. ``longest``: seconds of a lease."""
    chosen = random.sample(range(len(servers)), number)
    what = random.choice(["stop", "cut", "hang", "refuse", "kill"] if number == 1 else ["stop", "hang", "refuse"])
    for index in chosen:
        if what == "stop":
            servers[index].process.send_signal(signal.SIGSTOP)
        elif what == "kill":
            servers[index].kill()
        else:
            getattr(proxies[index], what)()
    time.sleep(random.uniform(0.1, 0.6))
    for index in chosen:
        if what == "stop":
            servers[index].process.send_signal(signal.SIGCONT)
        elif what == "kill":
            servers[index].start()
        proxies[index].heal()
    time.sleep(random.uniform(2, 3) * longest if what == "kill" else 0.2)  # no second one loses its data meanwhile
