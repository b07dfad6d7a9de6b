"""What a sweep found and did: frozen values, and the log from which they are made."""

from __future__ import annotations

import enum
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from django.utils.translation import gettext_noop

from django_tasklock.operations.audit import NewEntry, interrupted_outcome, record_acts
from django_tasklock.operations.values import Actor

_CHECKED = ("entries", "locks", "rows", "parked", "messages")
MAX_FINDINGS = 1000
"""Findings listed in a report; all of them are counted."""


class Kind(enum.StrEnum):
    """The classes of leftovers, in the order in which they are swept."""

    EXPIRED = "expired"
    NO_EXPIRY = "no_expiry"
    OVERDUE = "overdue"
    DEAD = "dead"
    FINISHED = "finished"
    DIFFERS = "differs"
    ABANDONED = "abandoned"
    PARKED = "parked"
    LAPSED = "lapsed"


CLASSES: Mapping[Kind, tuple[str, str]] = {
    Kind.EXPIRED: (gettext_noop("index entries of locks that lapsed"), "forgotten"),
    Kind.NO_EXPIRY: (gettext_noop("locks without expiry"), "given one"),
    Kind.OVERDUE: (gettext_noop("locks held beyond their timeout"), "released"),
    Kind.DEAD: (gettext_noop("locks whose holder's process is dead"), "released"),
    Kind.FINISHED: (gettext_noop("locks whose row is finished"), "released"),
    Kind.DIFFERS: (gettext_noop("locks whose row is claimed by another token"), "told"),
    Kind.ABANDONED: (gettext_noop("claimed rows without a live lock"), "put back"),
    Kind.PARKED: (gettext_noop("parked messages whose lock is free"), "promoted"),
    Kind.LAPSED: (gettext_noop("messages that a dead worker had fetched"), "put back"),
}
"""Each class in words, which are translated, and the action on it."""


class FindingOutcome(enum.StrEnum):
    """The outcome of a finding."""

    SWEPT = "swept"
    WOULD = "would_be_swept"
    """Only in a dry run."""
    CHANGED = "changed"
    """The second pass did not confirm it: nothing was done."""
    KEPT = "kept"
    """Confirmed, but there is no safe action: ``why`` says what to check."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding. Texts are for people and contain no token."""

    kind: Kind
    came: FindingOutcome
    why: str
    """The evidence, or why nothing was done."""
    name: str = ""
    """The lock; empty if that of a row is unknown."""
    row: str = ""
    """The guarded row, ``videos.video:42``."""
    holder: str = ""
    put_back: bool = False
    """Whether the row was made claimable again (in a dry run: would be)."""
    published: str = ""
    """The id of the message with which the task was published again."""
    unpublished: str = ""
    """Why the task was not published, although requested."""

    @property
    def audit_entry(self) -> NewEntry:
        """The entry for the audit trail."""
        actions = [CLASSES[self.kind][1]]
        if self.put_back:
            actions = [f"{self.row} put back"] if self.kind is Kind.ABANDONED else [*actions, f"{self.row} put back"]
        if self.published:
            actions.append(f"published again as {self.published}")
        return NewEntry(self.name or self.row or self.holder, "sweep", f"{self.kind}: {self.why}", ", ".join(actions))

    def as_dict(self) -> dict[str, str | bool]:
        """Return the values for JSON."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return {name: value if value is True else str(value) for name, value in values.items() if value}


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts of one class. Each one ``found`` was ``acted`` on (or would be), ``changed`` meanwhile, or ``kept``."""

    found: int = 0
    acted: int = 0
    changed: int = 0
    kept: int = 0


@dataclass(frozen=True, slots=True)
class SweepReport:
    """What one sweep found and did."""

    dry_run: bool
    tallies: Mapping[Kind, Tally]
    """The counts of every class, in order."""
    findings: tuple[Finding, ...]
    """The first thousand findings; expired index entries are only counted."""
    unlisted: int
    """The number of further findings."""
    looked_at: Mapping[str, int]
    """The number of orphaned ``entries``, ``locks``, ``rows``, ``parked`` messages and unacknowledged ``messages`` of
    dead workers that were checked."""
    left_out: tuple[str, ...]
    """What could not be checked, and why."""
    published: int
    """The number of tasks published again."""
    seconds: float
    number: int | None = None
    """``SweepRun.number`` of the recorded run; ``None``: it was not recorded, as a dry run."""

    @property
    def swept(self) -> int:
        """The number of findings that were repaired (in a dry run: would be)."""
        return sum(tally.acted for tally in self.tallies.values())

    @property
    def rate(self) -> float:
        """Things checked per second."""
        return sum(self.looked_at.values()) / self.seconds if self.seconds else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return the values for JSON."""
        return {
            "dry_run": self.dry_run,
            "swept": self.swept,
            "published": self.published,
            "classes": {
                kind.value: {"found": one.found, "acted": one.acted, "changed": one.changed, "kept": one.kept}
                for kind, one in self.tallies.items()
            },
            "findings": [finding.as_dict() for finding in self.findings],
            "unlisted": self.unlisted,
            "looked_at": dict(self.looked_at),
            "left_out": list(self.left_out),
            "seconds": round(self.seconds, 3),
            "rate": round(self.rate, 1),
        }


@dataclass
class SweepLog:
    """Collects the findings of a running sweep for its report."""

    dry_run: bool
    counts: dict[Kind, dict[str, int]] = field(default_factory=lambda: {kind: {} for kind in Kind})
    findings: list[Finding] = field(default_factory=list)
    unlisted: int = 0
    looked_at: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_CHECKED, 0))
    left_out: dict[str, None] = field(default_factory=dict)
    published: int = 0
    started: float = field(default_factory=time.monotonic)
    new_entries: list[NewEntry] = field(default_factory=list)

    def add(self, finding: Finding) -> None:
        """Count a finding, and list it if there is room."""
        word = {
            FindingOutcome.SWEPT: "acted",
            FindingOutcome.WOULD: "acted",
            FindingOutcome.CHANGED: "changed",
            FindingOutcome.KEPT: "kept",
        }[finding.came]
        self.count(finding.kind, found=1, **{word: 1})
        self.published += bool(finding.published)
        if finding.came is FindingOutcome.SWEPT:
            self.new_entries.append(finding.audit_entry)
        if len(self.findings) < MAX_FINDINGS:
            self.findings.append(finding)
        else:
            self.unlisted += 1

    def count(self, kind: Kind, **numbers: int) -> None:
        """Count without listing."""
        for word, number in numbers.items():
            self.counts[kind][word] = self.counts[kind].get(word, 0) + number

    def record_left_out(self, why: str) -> None:
        """Record, once, what could not be checked."""
        self.left_out[why] = None

    @contextmanager
    def audit_interruption(self, name: str, kind: Kind, why: str) -> Iterator[None]:
        """Note for the audit trail that the block, which acts on a finding, broke off, if it does."""
        entries_before = len(self.new_entries)
        try:
            yield
        except BaseException as error:
            if not self.dry_run and len(self.new_entries) == entries_before:
                self.new_entries.append(NewEntry(name, "sweep", f"{kind}: {why}", interrupted_outcome(error)))
            raise

    def write_audit_entries(self, by: Actor) -> None:
        """Write the actions since the last call to the audit trail."""
        if self.new_entries:
            record_acts(by, self.new_entries)
        self.new_entries = []

    def report(self) -> SweepReport:
        """Return the report so far."""
        return SweepReport(
            dry_run=self.dry_run,
            tallies={kind: Tally(**counts) for kind, counts in self.counts.items()},
            findings=tuple(self.findings),
            unlisted=self.unlisted,
            looked_at=dict(self.looked_at),
            left_out=tuple(self.left_out),
            published=self.published,
            seconds=time.monotonic() - self.started,
        )
