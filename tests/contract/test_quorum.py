"""What a majority of instances does that one store does not: lost answers, silent and empty instances, clocks apart."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import TypeVar

import pytest
import redis
from django.core.exceptions import ImproperlyConfigured
from hypothesis import HealthCheck, Phase, given, settings, strategies as st

from django_tasklock.backends.quorum import QuorumBackend
from django_tasklock.backends.quorum.ballot import most_of
from django_tasklock.backends.quorum.proposals import Proposals
from django_tasklock.checks.deploy import check_store
from django_tasklock.conf import QUORUM
from django_tasklock.exceptions import BackendUnavailable
from django_tasklock.types import (
    AcquireRequest,
    Grant,
    Holder,
    InstanceState,
    Record,
    Released,
    Renewal,
    RenewalResult,
)
from tests.support import quorum
from tests.support.proxy import Proxy, anything, scripts
from tests.support.redis_server import free_port
from tests.support.stores import PATIENCE, an_ask, be_patient, eventually, granted

pytestmark = pytest.mark.redis
NAME = "video:1"
T = TypeVar("T")


@pytest.fixture
def proxies() -> Iterator[list[Proxy]]:
    """A proxy before each of three empty instances."""
    quorum.clear(3)
    with ExitStack() as stack:
        yield [stack.enter_context(Proxy(server.url)) for server in quorum.servers(3)]


@pytest.fixture
def backend(proxies: list[Proxy], monkeypatch: pytest.MonkeyPatch) -> Iterator[QuorumBackend]:
    """A backend that has connections already, and has granted something."""
    be_patient(monkeypatch)
    backend = quorum.of([proxy.url for proxy in proxies])
    warm = an_ask("warm")
    granted(backend.acquire(warm))
    assert backend.release("warm", warm.token) is Released.RELEASED
    yield backend
    backend.close()


def tokens() -> list[bytes | None]:
    """Who has the lock on each instance."""
    values = quorum.values_of(NAME, [server.url for server in quorum.servers(3)])
    return [None if value is None else value[10:42] for value in values]


@pytest.mark.parametrize("lefts", [(None, 60_000), (60_000, None), (50_000, 60_000)])
def test_a_lock_ends_where_it_is_kept_longest_whichever_clock_is_ahead(lefts: tuple[int | None, int | None]) -> None:
    """The one of the later clock was believed: what had no expiry on the others was shown to end, and not swept."""
    first, second = (
        Record(NAME, "token", Holder(), at=moment, until=moment + 7_200_000, now=moment, fence=7, ttl=left)
        for moment, left in enumerate(lefts, start=1000)
    )
    found = most_of([first, second])
    assert found.ttl == (None if None in lefts else 60_000)
    assert found.instances == 2


def unstalled(work: Callable[[], T]) -> T:
    """What it returns once all that are needed for it have answered in time: a machine may stall for a moment."""

    def once() -> tuple[T] | None:
        with suppress(BackendUnavailable):
            return (work(),)
        return None

    return eventually(once, 60)[0]


def all_done(backend: QuorumBackend) -> Sequence[InstanceState]:
    """The states of the instances, each after all else that it was asked before, also if no caller waited for that."""
    return backend.instance_states()


def flush(number: int) -> None:
    """Let one instance lose its data."""
    with redis.Redis.from_url(quorum.servers(3)[number].url) as client:
        client.flushall()


class TestLostAnswers:
    @pytest.mark.parametrize("lost", [1, 2, 3])
    def test_what_was_asked_and_whose_answers_are_lost_is_done_all_the_same(self, backend, proxies, lost):
        """A minority's are not needed; else it is asked again, with the same token."""
        for proxy in proxies[:lost]:
            proxy.lose_reply()
        mine = an_ask(NAME)
        grant = granted(backend.acquire(mine))
        record = backend.get(NAME)
        assert (record.token, record.fence) == (mine.token, grant.fence)
        everywhere = [mine.token.encode()] * 3  # on one that is slow it could arrive after its release
        eventually(lambda: backend.renew([Renewal(NAME, mine.token, 60_000)]) and tokens() == everywhere)
        for proxy in proxies[:lost]:
            proxy.lose_reply()
        assert backend.release(NAME, mine.token) is Released.RELEASED
        eventually(lambda: tokens() == [None, None, None])

    def test_what_a_majority_does_not_grant_is_given_back_also_where_the_answer_was_lost(self, backend, proxies):
        proxies[0].fault(anything, times=2, lose=True)
        for proxy in proxies[1:]:
            proxy.fault(anything, times=-1, unsent=True)
        with pytest.raises(BackendUnavailable) as caught:
            backend.acquire(an_ask(NAME))
        assert caught.value.doubt
        eventually(lambda: tokens() == [None, None, None])

    def test_renewals_have_three_outcomes(self, backend, proxies):
        mine = an_ask(NAME)
        granted(backend.acquire(mine))
        batch = [Renewal(NAME, mine.token, 60_000)]
        proxies[0].fault(anything, times=-1, unsent=True)
        assert backend.renew(batch) == [RenewalResult.RENEWED]
        proxies[1].fault(anything, times=-1, unsent=True)
        with pytest.raises(BackendUnavailable):
            backend.renew(batch)
        for proxy in proxies[:2]:
            proxy.heal()
        flush(0)
        assert unstalled(lambda: backend.renew(batch)) == [RenewalResult.RENEWED]
        flush(1)
        assert unstalled(lambda: backend.renew(batch)) == [RenewalResult.LOST]

    def test_a_hung_instance_does_not_delay_verbs(self, backend, proxies):
        proxies[2].hang()
        mine = an_ask(NAME)
        began = time.monotonic()
        for _ in range(5):
            granted(backend.acquire(mine))
            assert backend.renew([Renewal(NAME, mine.token, 60_000)]) == [RenewalResult.RENEWED]
            assert backend.release(NAME, mine.token) is Released.RELEASED
        assert time.monotonic() - began < 15 * PATIENCE / 2, "half of them waited for it"


def taken(backend: QuorumBackend, request: AcquireRequest) -> Grant | None:
    """The grant, if it can be had now."""
    try:
        answer = backend.acquire(request)
    except BackendUnavailable:
        return None
    return answer if isinstance(answer, Grant) else None


def admitted(backend: QuorumBackend, number: int) -> bool:
    """Whether an instance that was empty votes, or will."""
    backend.recovery.admit()
    with redis.Redis.from_url(quorum.servers(3)[number].url) as client:
        return (client.get("task_lock#quorum") or b"E")[:1] != b"E"


class TestFences:
    @pytest.mark.slow
    @settings(
        max_examples=10,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )
    @given(
        st.lists(
            st.tuples(st.integers(0, 2), st.sampled_from(["release", "lose", "leave", "hide"]), st.integers(0, 2)),
            min_size=2,
            max_size=6,
        ),
        st.lists(st.integers(-3600, 3600), min_size=3, max_size=3),
    )
    def test_they_grow_with_clocks_apart_and_data_lost_on_a_minority(self, proxies, plays, clocks):
        quorum.clear(3)
        for proxy in proxies:  # of the example before
            proxy.heal()
        backends = []
        for seconds in clocks:
            one = quorum.of([proxy.url for proxy in proxies])
            one.proposals = Proposals(lambda seconds=seconds: time.time_ns() + seconds * 10**9)
            backends.append(one)
        try:
            eventually(lambda: taken(backends[0], an_ask("first", ttl=1000)))  # all are empty: all vote at once
            fences = []
            for who, what, where in plays:
                mine = an_ask(NAME, ttl=60_000 if what == "release" else 30)
                if what == "hide":  # this instance takes no part in the grant
                    proxies[where].fault(anything, times=-1, unsent=True)

                # Not at once, maybe: one is hidden, another one abstains.
                fences.append(eventually(lambda who=who, mine=mine: taken(backends[who], mine)).fence)
                proxies[where].heal()
                if what == "release":
                    assert backends[who].release(NAME, mine.token) is Released.RELEASED
                    eventually(lambda: tokens() == [None] * 3)  # the next fault is not to meet a part of it
                elif what == "lose":
                    flush(where)
                    eventually(lambda who=who, where=where: admitted(backends[who], where))
            assert fences == sorted(set(fences))
        finally:
            for one in backends:
                one.close()


class TestEmptyInstances:
    def test_one_that_forgot_a_lock_abstains_while_its_lease_may_run(self, backend, proxies):
        """With the one that never had it, it would be a second majority."""
        proxies[2].fault(anything, times=-1, unsent=True)
        mine = an_ask(NAME, ttl=1000)
        began = time.monotonic()
        eventually(lambda: taken(backend, mine))
        proxies[2].heal()
        flush(1)
        other = an_ask(NAME, ttl=1000)
        eventually(lambda: taken(backend, other))
        assert time.monotonic() - began >= 1.0

    def test_one_that_was_started_again_with_its_data_abstains_too(self, backend, proxies):
        eventually(lambda: taken(backend, an_ask("other", ttl=700)))
        with redis.Redis.from_url(quorum.servers(3)[0].url) as client:
            client.set("task_lock#quorum:run", "another")
        second = quorum.of([proxy.url for proxy in proxies])
        granted(second.acquire(an_ask(NAME)))
        abstains = [state.abstains for state in all_done(second)]
        assert tokens()[0] is None
        assert abstains[0] != 0, "it is empty, or abstains since it was noticed"
        assert abstains[1:] == [0, 0]
        eventually(lambda: isinstance(second.acquire(an_ask("third")), Grant))
        second.close()

    def test_where_all_are_empty_all_vote_at_once(self, backend):
        quorum.clear(3)

        def has_three_votes() -> bool:
            mine = an_ask(NAME)
            granted(backend.acquire(mine))
            votes = tokens()
            backend.release(NAME, mine.token)
            return None not in votes

        eventually(has_three_votes)  # for a grant two are enough: a third that is slow is not waited for

    def test_too_few_that_vote_are_no_majority(self, backend, proxies):
        granted(backend.acquire(an_ask("other")))
        flush(0)
        flush(1)
        with pytest.raises(BackendUnavailable, match="abstain"):
            backend.acquire(an_ask(NAME))
        eventually(lambda: tokens() == [None, None, None])  # what one has granted is given back without waiting for it


class TestGivenBack:
    """A renewal records a lock where it is missing: a hold that lasts survives all instances, one after the other."""

    def renewed(self, backend: QuorumBackend, mine: AcquireRequest, ttl: int = 4000) -> list[bytes | None]:
        assert backend.renew([Renewal(NAME, mine.token, ttl)]) == [RenewalResult.RENEWED]
        return tokens()

    def test_one_that_was_not_there_has_it_with_the_next_renewal(self, backend, proxies):
        proxies[2].fault(anything, times=-1, unsent=True)
        mine = an_ask(NAME)
        fence = granted(unstalled(lambda: backend.acquire(mine))).fence
        all_done(backend)
        assert tokens()[2] is None
        proxies[2].heal()
        eventually(lambda: self.renewed(backend, mine, 60_000) == [mine.token.encode()] * 3)
        eventually(lambda: [one.instances for one in backend.records() if one.token == mine.token] == [3])
        with redis.Redis.from_url(quorum.servers(3)[2].url) as client:
            greatest = [int(client.get(key)) for key in client.keys("task_lock#quorum:[0-9]*")]
            assert fence in greatest, "a later fence must be greater here as well"
            assert client.pttl(f"task_lock:{NAME}") > 50_000

    def test_not_on_one_that_abstains(self, backend, proxies):
        granted(backend.acquire(mine := an_ask(NAME)))
        flush(1)
        other = an_ask("other")
        granted(unstalled(lambda: backend.acquire(other)))  # the lease of the first is 60 s: so long one abstains
        unstalled(lambda: backend.release("other", other.token))
        for _ in range(3):  # both others must answer in time, and the machine may stall for a moment
            eventually(lambda: backend.renew([Renewal(NAME, mine.token, 60_000)]) == [RenewalResult.RENEWED], 60)
            assert tokens()[1] is None

    def test_a_minority_gives_nothing_back(self, backend, proxies):
        granted(backend.acquire(mine := an_ask(NAME)))
        eventually(lambda: self.renewed(backend, mine, 60_000) == [mine.token.encode()] * 3)  # also on one that is slow
        for server in quorum.servers(3)[:2]:
            with redis.Redis.from_url(server.url) as client:
                client.delete(f"task_lock:{NAME}")
        assert backend.renew([Renewal(NAME, mine.token, 60_000)]) == [RenewalResult.LOST]
        assert tokens() == [None, None, mine.token.encode()]


class TestLateAnswers:
    """Two of three decide, and the third one is slow."""

    def test_a_release_does_not_overtake_the_request_before_it(self, backend, proxies):
        go_on, executed = threading.Event(), threading.Event()
        proxies[2].fault(scripts("quorum_acquire"), first=lambda: go_on.wait(60), then=executed.set)
        mine = an_ask(NAME)
        granted(backend.acquire(mine))
        assert backend.release(NAME, mine.token) is Released.RELEASED
        assert not executed.is_set()
        go_on.set()
        assert executed.wait(10)
        eventually(lambda: tokens() == [None] * 3)


def test_the_same_server_twice_has_one_vote():
    with pytest.raises(ImproperlyConfigured, match="localhost:7001 twice"):
        quorum.of(["redis://localhost:7001/0", "redis://127.0.0.1:7001/1", "redis://localhost:7002/0"])


@pytest.mark.parametrize(("others", "down"), [("redis://127.0.0.1:{}", True), ("unix:///nowhere/{}", False)])
def test_down_is_a_majority_that_nobody_reaches(others, down):
    """Two that this client cannot ask may be a majority to another one, together with the third."""
    store = quorum.of([others.format(free_port()), others.format(free_port()), f"redis://127.0.0.1:{free_port()}"])
    with pytest.raises(BackendUnavailable) as caught:
        store.get("a")
    assert caught.value.down is down
    store.close()


def test_the_check_names_the_instances_that_do_not_answer(backend, proxies, settings):
    settings.TASKLOCK = {"BACKEND": QUORUM, "LOCATION": [proxy.url for proxy in proxies]}
    assert check_store() == []
    proxies[1].refuse()
    assert [bool(state.error) for state in backend.instance_states()] == [False, True, False]
    (warning,) = check_store()
    assert warning.id == "tasklock.W010"
    assert "2 of 3 Redis instances answer" in warning.msg
    assert f"localhost:{proxies[1].port}" in warning.msg
