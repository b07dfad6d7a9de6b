"""Events of rate limits: each is logged and sent as a signal, here and nowhere else."""

from __future__ import annotations

import logging
from functools import lru_cache

from django_tasklock import counts, signals
from django_tasklock.backends.contract.rates import TENANT, Booked, Penalty, Pushback, Refused, Terms, split_tenant
from django_tasklock.exceptions import BackendUnavailable, RateLimitExceeded

logger = logging.getLogger("django_tasklock")


@lru_cache(maxsize=1024)
def limiter_kind(name: str) -> str:
    """Return the kind that a limiter is counted as: its name; all tenants of one share the kind ``tavily:tenant``."""
    limiter, tenant = split_tenant(name)
    return counts.clean_kind(limiter if tenant is None else limiter + TENANT.rstrip(":"))


def count_answer(name: str, answer: Booked | Refused) -> None:
    """Count the answer to a request for a slot, once, with the wait until then; ``cancelled`` tells what came after."""
    if isinstance(answer, Refused):
        counts.count(counts.REFUSED, limiter_kind(name))
    elif (wait := answer.wait // 1000) > 0:
        counts.count(counts.GRANTED_LATE, limiter_kind(name), wait)
    else:
        counts.count(counts.GRANTED, limiter_kind(name))


def granted(name: str, wait: float, cost: int) -> None:
    """Report that a call is allowed. ``wait``: the seconds that it has waited."""
    how = "waited" if wait else "at_once"
    if wait:
        logger.debug("rate limit %r: granted after %.3f s", name, wait)
    signals.send(signals.rate_granted, name, how=how, wait=wait, cost=cost)


def refused(terms: Terms, wait: int, max_wait: int) -> RateLimitExceeded:
    """Report that a call is not allowed in time, and return the error. ``wait``, ``max_wait``: microseconds."""
    seconds = wait / 1_000_000
    rates = ", ".join(map(str, terms.rates))
    why = (
        f"the next reservation is in {seconds:.3f} s, it may take {max_wait / 1_000_000:g} s; to wait for longer, raise"
        " max_wait= of the limit, and blocking_timeout= of the call if it has one"
    )
    error = RateLimitExceeded(f"rate limit {terms.name!r} ({rates}): {why}", name=terms.name, retry_after=seconds)
    # A caller that does not want to wait expects to be refused.
    logger.log(logging.INFO if max_wait else logging.DEBUG, "refused: %s", error)
    signals.send(signals.rate_refused, terms.name, error=error, retry_after=seconds)
    return error


def always_late(terms: Terms, misses: int, seconds: float) -> RateLimitExceeded:
    """Report that a caller has missed slot after slot, the last one by ``seconds``, and return the error."""
    error = RateLimitExceeded(
        f"rate limit {terms.name!r}: this call was too late for its reservation {misses} times, the last time by"
        f" {seconds:.3f} s; the store or this process takes longer than the margin of {terms.margin / 1_000_000:g} s:"
        " raise margin=",
        name=terms.name,
        retry_after=0.0,
    )
    logger.warning("refused: %s", error)
    signals.send(signals.rate_refused, terms.name, error=error, retry_after=0.0)
    return error


def cancelled(name: str, returned: bool) -> None:
    """Report that a reservation was cancelled. ``returned``: whether its slot was returned to the store."""
    if returned:
        counts.count(counts.CANCELLED, limiter_kind(name))
    else:
        logger.info("rate limit %r: a reservation was not given back: it counts as used", name)
    signals.send(signals.rate_cancelled, name, returned=returned)


def late(name: str, seconds: float) -> None:
    """Report that a reservation was missed by ``seconds`` and is booked again."""
    logger.info("rate limit %r: a reservation was missed by %.3f s, and is booked again", name, seconds)
    signals.send(signals.rate_late, name, late=seconds)


def pushback(name: str, asked: Pushback, penalty: Penalty, max_wait: int) -> None:
    """Report that the called service has asked for a pause. ``max_wait``: the longest one, in microseconds."""
    counts.count(counts.PUSHBACK, limiter_kind(name))
    wait, share = penalty.wait / 1_000_000, penalty.share / 1_000_000
    shortened = penalty.wait >= max_wait if asked.absolute else asked.amount > max_wait
    cut = f"; it asks for {asked}, and max_wait allows {max_wait / 1_000_000:g} s" if shortened else ""
    text = "rate limit %r: pushback, no call starts for %.3f s; limit at %.0f %%%s"
    logger.warning(text, name, wait, share * 100, cut)
    signals.send(signals.rate_pushback, name, wait=wait, share=share)


def unreadable_pushback(name: str, said: str, seconds: float) -> None:
    """Report that a response does not say for how long to pause. ``said``: what it says instead."""
    text = "rate limit %r: the response does not say for how long to pause (%s); the pause is %g s"
    logger.warning(text, name, said, seconds)


def unavailable(name: str, error: BackendUnavailable, action: str) -> None:
    """Report that the store is unavailable, and the ``action`` that follows."""
    logger.warning("rate limit %r: %s; policy: %s", name, error, action)
    signals.send(signals.store_unavailable, name, error=error, action=action)
    signals.send(signals.rate_unavailable, name, error=error, action=action)
