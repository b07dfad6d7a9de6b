"""A time limit strikes an operator, or the sweep: what was done has its entry, and the next one does the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import pytest
from django.db import connection

from django_tasklock import ConcurrencyLimiter, RateLimiter, TaskLockError, operations
from django_tasklock.backends import get_backend
from django_tasklock.models import AuditEntry
from django_tasklock.operations import Actor, acts
from tests.support.guards import ONCE, no_guards
from tests.support.public import in_store
from tests.support.struck import SoftTimeLimit, Struck, struck_at
from tests.support.sweeping import claimed, dead_holder, guarded_function, hold, swept
from tests.testapp.models import Video

pytestmark = pytest.mark.django_db(transaction=True)

BY = Actor("somebody")
KEPT: list[ConcurrencyLimiter] = []


@pytest.fixture(autouse=True)
def store(settings: Any) -> Iterator[str]:
    """Redis: the sweep leaves rows alone where locks are those of one process."""
    no_guards()
    guarded_function(guard=ONCE)
    for name in in_store("redis", settings):
        settings.TASKLOCK = {**settings.TASKLOCK, "RATE_LIMITS": {"api": "5/h"}}
        yield name


@pytest.fixture(scope="module")
def dead() -> str:
    return dead_holder()


class Case(NamedTuple):
    """``begin()`` makes what ``act(name)`` is done to, whose name it returns; ``state(name)`` tells whether it was."""

    begin: Callable[[str], str]
    act: Callable[[str], object]
    state: Callable[[str], object]


def guarded_lock(holder: str) -> str:
    video = claimed()
    name = f"video:{video.pk}"
    Video.objects.filter(pk=video.pk).update(lock_token=hold(name, holder, row=f"testapp.video:{video.pk}"))
    return name


def abandoned_row(holder: str) -> str:
    return f"video:{claimed().pk}"


def state_of_lock(name: str) -> object:
    record = get_backend().get(name)
    return record and (record.token, record.asked), Video.objects.values_list("status", "lock_token").get(pk=name[6:])


def limiter(holder: str) -> str:
    RateLimiter("api").reset()
    assert RateLimiter("api").try_acquire()
    return "api"


def paused(holder: str) -> str:
    limiter(holder)
    operations.pause_limit("api", 600, by=Actor("before"))
    AuditEntry.objects.all().delete()
    return "api"


def state_of_limiter(name: str) -> object:
    usage = RateLimiter("api").usage()
    return usage.share, usage.used, usage.paused > 0


def permits(holder: str) -> str:
    with suppress(TaskLockError):  # it was taken away
        for limiter in KEPT:
            limiter.release()
    KEPT[:] = [ConcurrencyLimiter("api", 2)]
    assert KEPT[0].acquire()
    return "api"


def members(name: str) -> list[str]:
    return [record.token for record in get_backend().permits.members(name)]


def take_permit(name: str) -> object:
    [member] = operations.get_permits(name).members
    return operations.release_permit(name, member.fingerprint, by=BY)


CASES = {
    "release": Case(guarded_lock, lambda name: operations.release_lock(name, by=BY), state_of_lock),
    "ask": Case(lambda holder: guarded_lock("{}"), lambda name: operations.ask_to_release(name, by=BY), state_of_lock),
    "sweep a lock": Case(guarded_lock, lambda name: swept(), state_of_lock),
    "sweep a row": Case(abandoned_row, lambda name: swept(), state_of_lock),
    "reset": Case(limiter, lambda name: operations.reset_limit(name, by=BY), state_of_limiter),
    "change": Case(limiter, lambda name: operations.change_limit(name, 0.5, by=BY), state_of_limiter),
    "pause": Case(limiter, lambda name: operations.pause_limit(name, 60, by=BY), state_of_limiter),
    "resume": Case(paused, lambda name: operations.resume_limit(name, by=BY), state_of_limiter),
    "release a permit": Case(permits, take_permit, members),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "error"), [*((what, SoftTimeLimit) for what in CASES), *((what, Struck) for what in list(CASES)[:4])]
)
def test_struck_anywhere(what: str, error: type[BaseException], dead: str) -> None:
    case, number, name = CASES[what], 0, ""
    while True:
        number += 1
        if not name:
            name = case.begin(dead)
            before = case.state(name)
        with struck_at(number, error) as struck:
            case.act(name)
        if not struck:
            break
        assert not connection.in_atomic_block, struck
        if case.state(name) == before:  # the next act must be able to do it, so it needs no other lock
            AuditEntry.objects.all().delete()
            continue
        assert AuditEntry.objects.exists(), struck
        if "sweep" in what or what == "release":
            swept()
            record, (status, token) = state_of_lock(name)
            assert record is None, struck
            assert (status, token) == ("uploading", ""), struck
        Video.objects.all().delete()
        AuditEntry.objects.all().delete()
        name = ""
    assert number > 20
    assert [act.outcome for act in acts(name) if "broken off" in act.outcome] == []
