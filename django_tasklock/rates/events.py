"""Nothing is swallowed: what happened at a rate limit becomes a log line and a signal, here alone."""

from __future__ import annotations

import logging

from django_tasklock import signals
from django_tasklock.backends.contract.rates import Penalty, Terms
from django_tasklock.exceptions import BackendUnavailable, RateLimitExceeded

logger = logging.getLogger("django_tasklock")


def granted(name: str, wait: float, cost: int) -> None:
    """Tell that a call may go. ``wait``: seconds that it has waited."""
    how = "waited" if wait else "at_once"
    if wait:
        logger.debug("rate limit %r: granted after %.3f s", name, wait)
    signals.send(signals.rate_granted, name, how=how, wait=wait, cost=cost)


def refused(terms: Terms, wait: int, longest: int) -> RateLimitExceeded:
    """Tell that a call may not go in time; the error to raise. ``wait``, ``longest``: microseconds."""
    seconds = wait / 1_000_000
    rates = ", ".join(map(str, terms.rates))
    why = f"the next reservation is in {seconds:.3f} s, it may take {longest / 1_000_000:g} s"
    error = RateLimitExceeded(f"rate limit {terms.name!r} ({rates}): {why}", name=terms.name, retry_after=seconds)
    logger.log(logging.INFO if longest else logging.DEBUG, "refused: %s", error)  # who did not want to wait only asked
    signals.send(signals.rate_refused, terms.name, error=error, retry_after=seconds)
    return error


def cancelled(name: str, returned: bool) -> None:
    """Tell that a reservation was cancelled. ``returned``: the store took it back."""
    if not returned:
        logger.info("rate limit %r: a reservation was not given back: it counts as used", name)
    signals.send(signals.rate_cancelled, name, returned=returned)


def late(name: str, seconds: float) -> None:
    """Tell that a reservation was missed by so many seconds and is booked again."""
    logger.info("rate limit %r: a reservation was missed by %.3f s, and is booked again", name, seconds)
    signals.send(signals.rate_late, name, late=seconds)


def pushback(name: str, penalty: Penalty) -> None:
    """Tell that the other side asked for a pause."""
    wait, share = penalty.wait / 1_000_000, penalty.share / 1_000_000
    logger.warning("rate limit %r: pushback, nobody goes for %.3f s; limit at %.0f %%", name, wait, share * 100)
    signals.send(signals.rate_pushback, name, wait=wait, share=share)


def unavailable(name: str, error: BackendUnavailable, action: str) -> None:
    """Tell that the store could not be asked, and what is done about that."""
    logger.warning("rate limit %r: %s; policy: %s", name, error, action)
    signals.send(signals.store_unavailable, name, error=error, action=action)
    signals.send(signals.rate_unavailable, name, error=error, action=action)
