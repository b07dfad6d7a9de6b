"""The limited API: more calls are published at once than it allows, and none exceeds the limit."""

from __future__ import annotations

from bisect import bisect_left

from demokit.crew import wait_until
from demokit.screen import Screen
from django_tasklock import RateLimiter
from videos import catalogue
from videos.tasks import announce

__all__ = ["make", "worst"]

STOPPED = 0.25  # seconds for which a process may be paused between its turn and its record


def make(screen: Screen, video_ids: list[int]) -> bool:
    """Publish more calls than the limit allows at once, and report them; return whether the limit was kept."""
    [rate] = RateLimiter("catalogue").terms.rates
    window, wanted = rate.window / 1_000_000, rate.limit * 3 // 2
    screen.say(f"{wanted} calls of an API that allows {rate.limit} in {window:g} s, published at once.")
    for number in range(wanted):
        announce.delay(video_id=video_ids[number % len(video_ids)])
    made = wait_until(lambda: len(catalogue.calls()) >= wanted, 30)
    times = catalogue.calls()
    most = worst(times, window - STOPPED)
    took = times[-1] - times[0] if times else 0.0
    screen.say(f"{len(times)} were made within {took:.1f} s, {most} at most in any {window:g} s.")
    if made and most <= rate.limit:
        return True
    print(f"WRONG  the API was called {len(times)} times, {most} of them in {window:g} s")
    return False


def worst(times: list[float], window: float) -> int:
    """Return the most calls in any window of ``window`` seconds."""
    return max((bisect_left(times, first + window) - index for index, first in enumerate(times)), default=0)
