"""What happened, from the journal of the workers and from the ledger that the database itself keeps of each write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from django.db import connection

from tests.testapp.models import Note, Video

__all__ = ["Verdict", "clear", "judge", "keep_ledger"]

_TRIGGER = {
    "sqlite": """
        CREATE TRIGGER ledger_{name} AFTER UPDATE OF {column} ON testapp_video WHEN {when}
        BEGIN INSERT INTO testapp_note (video_id, text) VALUES (NEW.id, {text}); END
    """,
    "postgresql": """
        CREATE FUNCTION ledger_{name}() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN INSERT INTO testapp_note (video_id, text) VALUES (NEW.id, {text}); RETURN NULL; END $$;
        CREATE TRIGGER ledger_{name} AFTER UPDATE OF {column} ON testapp_video FOR EACH ROW WHEN ({when})
        EXECUTE FUNCTION ledger_{name}()
    """,
}
DONE = "done"


def keep_ledger() -> None:
    """Let the database note each write of a session, and each time that a row is said to be done."""
    with connection.cursor() as cursor:
        made = _TRIGGER[connection.vendor]
        cursor.execute(
            made.format(name="write", column="hls_file", when="NEW.hls_file IS NOT NULL", text="NEW.hls_file")
        )
        cursor.execute(made.format(name="done", column="status", when="NEW.status = 'ready'", text=f"'{DONE}'"))


def clear(rows: int) -> None:
    """Begin with so many rows that nobody has worked on."""
    Video.objects.all().delete()
    Video.objects.bulk_create([Video() for _ in range(rows)])


class Verdict(NamedTuple):
    """What one way made of the same world."""

    done: int
    """Rows that were processed."""
    twice: int
    """Times that a row which was done was done once more."""
    stale: int
    """Writes of a session that the row has accepted although a later session had begun on it."""
    lost: int
    """Updates that another session has overwritten."""
    refused: int
    """Sessions that the row has refused although no later one had begun."""
    foreign: int
    """Releases of another's lock."""
    left: int
    """Locks that are left behind."""
    stopped: int
    """Sessions that the row has refused because it belonged to a later one: what the other ways let pass."""

    @property
    def broken(self) -> int:
        """How often a promise was broken."""
        return sum((self.twice, self.stale, self.lost, self.refused, self.foreign, self.left))


class _Event(NamedTuple):
    event: str
    session: str
    pk: int
    more: str = ""


def judge(journal: Path, left: int) -> Verdict:
    """Judge a run that is over. ``left``: the locks that are still there."""
    events = list(_events(journal))
    begun: dict[int, list[str]] = {}
    for event in events:
        if event.event == "begin":
            begun.setdefault(event.pk, []).append(event.session)
    refusals = [one for one in events if one.event == "refused" or (one.event == "skipped" and _is_refusal(one))]
    rightful = [one for one in refusals if begun.get(one.pk, [one.session])[-1] == one.session]
    done, stale, lost = Counter[int](), 0, 0
    for pk, writes in _ledger():
        done[pk] = writes.count(DONE)
        sessions = [write.split()[0] for write in writes if write != DONE]
        stale += _stale(sessions)
        lost += len(sessions) - Video.objects.get(pk=pk).progress
    return Verdict(
        done=sum(1 for times in done.values() if times),
        twice=sum(max(0, times - 1) for times in done.values()),
        stale=stale,
        lost=lost,
        refused=len(rightful),
        foreign=sum(one.event == "foreign" for one in events),
        left=left,
        stopped=len(refusals) - len(rightful),
    )


def _is_refusal(event: _Event) -> bool:
    return event.more not in ("already_processing", "lock_unavailable")


def _stale(sessions: list[str]) -> int:
    """Count the writes that come after the first write of a session that began later."""
    first = {session: number for number, session in reversed(list(enumerate(sessions)))}
    latest, stale = -1, 0
    for session in sessions:
        stale += first[session] < latest
        latest = max(latest, first[session])
    return stale


def _ledger() -> Iterator[tuple[int, list[str]]]:
    """Each row with what the database noted of it, in the order in which it was written."""
    found: dict[int, list[str]] = {}
    for pk, text in Note.objects.order_by("pk").values_list("video_id", "text"):
        found.setdefault(pk, []).append(text)
    yield from found.items()


def _events(journal: Path) -> Iterator[_Event]:
    for line in journal.read_text().splitlines():
        _, event, session, pk, *more = line.split("\t")
        yield _Event(event, session, int(pk), *more[:1])
