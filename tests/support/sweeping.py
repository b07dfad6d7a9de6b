"""What crashed holders leave behind, made on purpose, and things that happen between the two looks of a sweep."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

from django_tasklock import StateGuard, model_lock
from django_tasklock.backends import get_backend
from django_tasklock.guards.guard import has_token_columns
from django_tasklock.operations.sweep import Finding, SweepReport, stream, sweep
from django_tasklock.types import AcquireRequest, Grant
from tests.support.guards import GUARD, new_token
from tests.testapp.models import Video

__all__ = [
    "ELSEWHERE", "between_passes", "claimed", "claimed_by_dead", "dead_holder", "found", "guarded_function", "hold",
    "lapsed", "state", "swept", "tally_of",
]  # fmt: skip

ELSEWHERE = json.dumps({"host": "elsewhere", "pid": 1, "boot": "ffffffffffff", "proc": "00000000.1:1"})
"""A process on another machine: nothing is known of it."""
MINUTE, HOUR = 60_000, 3_600_000


@cache
def _ended() -> dict[str, Any]:
    """Who a process was that has ended, as it said itself; nobody else is taken for it, whatever its pid."""
    code = "from django_tasklock.locks.holder import holder_json; print(holder_json())"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    known: dict[str, Any] = json.loads(said)
    return known


def dead_holder(**more: Any) -> str:
    """A process of this machine that has ended."""
    return json.dumps({**_ended(), **more})


def hold(name: str, holder: str = ELSEWHERE, *, ttl: int = MINUTE, timeout: int = HOUR, **more: Any) -> str:
    """Somebody takes the lock; the token."""
    token = new_token()
    holder = json.dumps({**json.loads(holder), **more}, separators=(",", ":"))  # as it is written by those who hold it
    assert isinstance(get_backend().acquire(AcquireRequest(name, token, ttl, timeout, holder)), Grant)
    return token


def lapsed(name: str) -> None:
    """A lock whose holder let it end."""
    hold(name, ttl=1)
    while get_backend().get(name) is not None:
        pass


def claimed(model: Any = Video, state: str = "processing", token: str | None = None) -> Any:
    """A row that somebody has claimed, at epoch 1."""
    if has_token_columns(model):
        return model.objects.create(status=state, lock_token=new_token() if token is None else token, lock_epoch=1)
    return model.objects.create(status=state)


def claimed_by_dead(name: str = "video") -> tuple[Any, str]:
    """A row, and the token of the dead process that holds its lock and has claimed it."""
    row = claimed()
    token = hold(f"{name}:{row.pk}", dead_holder(), row=f"testapp.video:{row.pk}")
    Video.objects.filter(pk=row.pk).update(lock_token=token)
    return row, token


def state(row: Any) -> tuple[Any, ...]:
    """Its state now, and its claim where it has one: token and epoch."""
    row.refresh_from_db()
    return (row.status, row.lock_token, row.lock_epoch) if has_token_columns(type(row)) else (row.status,)


def guarded_function(model: Any = Video, name: str = "video:{video_id}", guard: StateGuard = GUARD) -> Any:
    """A function under a model lock."""

    @model_lock(model, name, pk="video_id", guard=guard)
    def work(video_id: int) -> str:
        return "done"

    return work


def swept(**options: Any) -> SweepReport:
    """One sweep, without a pause unless one is asked for."""
    return sweep(**{"pause": 0.0, **options})


def tally_of(report: SweepReport) -> dict[str, tuple[int, int, int, int]]:
    """Each class of which something was found: found, acted, changed, kept."""
    return {
        str(kind): (one.found, one.acted, one.changed, one.kept) for kind, one in report.counts.items() if one.found
    }


def found(report: SweepReport, kind: str) -> Finding:
    """The one finding of that class."""
    [finding] = [one for one in report.findings if one.kind == kind]
    return finding


def between_passes(monkeypatch: Any, happens: Callable[[], object]) -> list[float]:
    """Let something happen after the first look that found anything; the pauses that were asked for."""
    pauses: list[float] = []

    def sleep(pause: float) -> None:
        pauses.append(pause)
        if len(pauses) == 1:
            happens()

    monkeypatch.setattr(stream, "sleep", sleep)
    return pauses
