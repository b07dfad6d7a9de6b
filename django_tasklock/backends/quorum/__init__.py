"""Locks that a majority of independent Redis instances has granted."""

from __future__ import annotations

from collections.abc import Sequence

from django_tasklock.backends.contract.locks import LockStore
from django_tasklock.backends.contract.permits import Permits
from django_tasklock.backends.contract.queries import Counts, Page, Pruned, Query
from django_tasklock.backends.contract.rates import RateStore
from django_tasklock.backends.quorum.asking import Question, Verb
from django_tasklock.backends.quorum.instances import Instance, instances_of
from django_tasklock.backends.quorum.listing import Listing
from django_tasklock.backends.quorum.rounds import Rounds
from django_tasklock.backends.quorum.scripts import VOTES, QuorumKeys
from django_tasklock.backends.quorum.verbs import Verbs
from django_tasklock.backends.redis import CONDITION
from django_tasklock.backends.redis.keys import Layout
from django_tasklock.backends.redis.listing import ORDERED
from django_tasklock.conf import Settings
from django_tasklock.exceptions import TaskLockError
from django_tasklock.types import AcquireRequest, Busy, Grant, InstanceState, Record, Released, Renewal, RenewalResult

__all__ = ["QuorumBackend"]

ONE_STORE = (
    "limits need one Redis, as with TASKLOCK['BACKEND'] = 'django_tasklock.backends.redis.RedisBackend' and one address"
    " in TASKLOCK['LOCATION'], or the database backend"
)


class QuorumBackend(LockStore):
    """Locks on three or more independent Redis servers, of which a majority grants, renews and reports a lock.

    It works while a minority is down, silent or cut off, and while at most a minority has lost its data. It cannot
    promise exclusion to a process that is paused for longer than its lease: use the guarded row for that.

    Waiters poll. There are no permits and no rate limits: they are counts, on which instances that are asked in
    different orders would not agree in one round trip.
    """

    orders = ORDERED

    def __init__(self, settings: Settings) -> None:
        layout = Layout(settings.prefix)
        keys = QuorumKeys(layout)
        self.instances: Sequence[Instance] = instances_of(settings.LOCATION, keys)
        """In the order of ``LOCATION``."""
        hold, lease = settings.default_spans
        longest = max(lease, hold if settings.TIMEOUT is not None else 0)
        self.verbs = Verbs(keys, len(self.instances), longest)
        """The requests of the verbs."""
        self.rounds = Rounds(self.instances, self.verbs.needed, self.verbs.too_late)
        """Sends requests for threads."""
        self._listing = Listing(self.verbs)

    @property
    def permits(self) -> Permits:
        raise TaskLockError(f"A majority of Redis servers has no permits for a concurrency limiter: {ONE_STORE}")

    @property
    def rates(self) -> RateStore:
        raise TaskLockError(f"A majority of Redis servers keeps no rate limits: {ONE_STORE}")

    def acquire(self, request: AcquireRequest) -> Grant | Busy:
        return self.rounds.run(self.verbs.acquire(request))

    def release(self, name: str, token: str) -> Released:
        return self.rounds.run(self.verbs.release(name, token))

    def extend(self, name: str, token: str, ttl: int, hold: int) -> bool:
        return self.rounds.run(self.verbs.extend(name, token, ttl, hold))

    def renew(self, batch: Sequence[Renewal]) -> list[RenewalResult]:
        return self.rounds.run(self.verbs.renew(batch))

    def get(self, name: str) -> Record | None:
        return self.rounds.run(self.verbs.get(name))

    def page(self, query: Query) -> Page:
        return self.rounds.run(self._listing.page(query))

    def counts(self) -> Counts:
        return self.rounds.run(self._listing.counts())

    def _condition(self) -> tuple[int | None, str | None]:
        found = self.rounds.run(self._conditions())
        clocks = sorted(int(clock) for clock, _ in found)
        policies = [policy.decode() for _, policy in found]
        return clocks[len(clocks) // 2], next((one for one in policies if one != "noeviction"), policies[0])

    def _conditions(self) -> Verb[list[tuple[bytes, bytes]]]:
        return self.verbs.said((yield Question(CONDITION, b"")))

    def instance_states(self) -> Sequence[InstanceState]:
        return self.rounds.run(self._states())

    def _states(self) -> Verb[list[InstanceState]]:
        answers = yield Question(VOTES, self.verbs.keys.marker, again=False, patient=True)
        return [
            InstanceState(instance.name, f"{type(answer.error).__name__}: {answer.error}", None)
            if answer.error is not None
            else InstanceState(instance.name, "", None if answer.reply < 0 else answer.reply / 1000)
            for instance, answer in zip(self.instances, answers, strict=True)
        ]

    def ask_release(self, name: str, token: str) -> bool:
        return bool(token) and self.rounds.run(self._listing.ask_release(name, token))

    def set_expiry(self, name: str, token: str, ttl: int) -> bool:
        return self.rounds.run(self._listing.set_expiry(name, token, ttl))

    def prune(self, limit: int, *, lapsed_before: int | None = None, prefix: str = "", offset: int = 0) -> Pruned:
        return self.rounds.run(self._listing.prune(limit, lapsed_before, prefix, offset))

    def remove(self, name: str, token: str | None = None) -> Record | None:
        return self.rounds.run(self._listing.remove(name, token))

    def close(self) -> None:
        self.rounds.close()
