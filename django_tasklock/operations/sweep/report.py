"""What a sweep found and did: frozen values, and the log from which they are made."""

from __future__ import annotations

import enum
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from django.utils.translation import gettext_lazy as _, ngettext

from django_tasklock.operations.audit import NewEntry, record_acts
from django_tasklock.operations.sweep.restoring import RestoreResult
from django_tasklock.operations.values import Actor

MAX_FINDINGS = 1000
"""Findings listed in a report; all of them are counted."""

T = TypeVar("T")


class Kind(enum.StrEnum):
    """The classes of what is left behind, in the order in which they are swept."""

    NO_EXPIRY = "no_expiry"
    DEAD = "dead"
    ABANDONED = "abandoned"
    UNCLAIMED = "unclaimed"
    LAPSED = "lapsed"

    @property
    def label(self) -> Any:
        """The class in the active language."""
        return _LABELS[self]


_LABELS: Mapping[Kind, Any] = {
    Kind.NO_EXPIRY: _("locks without expiry"),
    Kind.DEAD: _("locks whose holder's process is dead"),
    Kind.ABANDONED: _("claimed rows without a live lock"),
    Kind.UNCLAIMED: _("rows in a claimed state that nobody has claimed"),
    Kind.LAPSED: _("messages that a dead worker had fetched"),
}
ACTIONS: Mapping[Kind, str] = {
    Kind.NO_EXPIRY: "given one",
    Kind.DEAD: "released",
    Kind.ABANDONED: "put back",
    Kind.UNCLAIMED: "put back",
    Kind.LAPSED: "put back",
}
"""What is done about each class, for the audit trail and the command."""
_ROWS = (Kind.ABANDONED, Kind.UNCLAIMED)


class FindingOutcome(enum.StrEnum):
    """The outcome of a finding."""

    SWEPT = "swept"
    WOULD = "would_be_swept"
    """Only in a dry run."""
    CHANGED = "changed"
    """The second look did not confirm it: nothing was done."""
    KEPT = "kept"
    """Confirmed, but there is no safe action: ``why`` says what to check."""

    @property
    def label(self) -> Any:
        """The outcome in the active language."""
        return _OUTCOME_LABELS[self]


_OUTCOME_LABELS: Mapping[FindingOutcome, Any] = {
    FindingOutcome.SWEPT: _("repaired"),
    FindingOutcome.WOULD: _("would be repaired"),
    FindingOutcome.CHANGED: _("no longer so at the second check"),
    FindingOutcome.KEPT: _("left as it is"),
}


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

    def __str__(self) -> str:
        """Return the finding on one line."""
        where = " ".join(filter(None, [self.name, self.row and f"({self.row})"])) or self.holder
        more = "; row put back" if self.put_back and self.kind not in _ROWS else ""
        more += f"; published again as {self.published}" if self.published else ""
        more += f"; not published: {self.unpublished}" if self.unpublished else ""
        return f"{self.came.replace('_', ' ')}: {where}: {self.why}{more}"

    def audit_entry(self) -> NewEntry:
        """Return the entry for the audit trail."""
        actions = [ACTIONS[self.kind]]
        if self.put_back:
            actions = [f"{self.row} put back"] if self.kind in _ROWS else [*actions, f"{self.row} put back"]
        if self.published:
            actions.append(f"published again as {self.published}")
        return NewEntry(self.name or self.row or self.holder, "sweep", f"{self.kind}: {self.why}", ", ".join(actions))


@dataclass(frozen=True, slots=True)
class Suspect(Generic[T]):
    """Something that looks left behind. Two looks make a finding of it."""

    kind: Kind
    why: str
    """The evidence."""
    found: T
    """What was read of it."""
    name: str = ""
    row: str = ""
    holder: str = ""

    def finding(self, came: FindingOutcome, why: str = "", restored: RestoreResult | None = None) -> Finding:
        """Return what came of it; ``why``: by default the evidence."""
        done, published, unpublished, _why = restored or RestoreResult(False)
        return Finding(self.kind, came, why or self.why, self.name, self.row, self.holder, done, published, unpublished)


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
    counts: Mapping[Kind, Tally]
    findings: tuple[Finding, ...]
    """The first thousand."""
    unlisted: int
    """The number of findings that are counted but not listed."""
    looked_at: Mapping[str, int]
    """The number of ``locks``, ``rows`` and unacknowledged ``messages`` of dead workers that were checked."""
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
        return sum(tally.acted for tally in self.counts.values())

    def __str__(self) -> str:
        """Return what was done, in the active language."""
        if self.dry_run:
            text = ngettext("%(count)d thing would be repaired.", "%(count)d things would be repaired.", self.swept)
        else:
            text = ngettext("%(count)d thing was repaired.", "%(count)d things were repaired.", self.swept)
        return text % {"count": self.swept}


_COLUMNS = {
    FindingOutcome.SWEPT: "acted",
    FindingOutcome.WOULD: "acted",
    FindingOutcome.CHANGED: "changed",
    FindingOutcome.KEPT: "kept",
}


@dataclass
class SweepLog:
    """Collects the findings of a running sweep for its report and the audit trail."""

    dry_run: bool
    by: Actor
    findings: list[Finding] = field(default_factory=list)
    left_out: dict[str, None] = field(default_factory=dict)
    looked_at: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("locks", "rows", "messages"), 0))
    _counts: dict[Kind, dict[str, int]] = field(default_factory=lambda: {kind: {"found": 0} for kind in Kind})
    _published: int = 0
    _started: float = field(default_factory=time.monotonic)
    _entries: list[NewEntry] = field(default_factory=list)

    def add(self, finding: Finding) -> None:
        """Count a finding, and list it if there is room."""
        counts, column = self._counts[finding.kind], _COLUMNS[finding.came]
        counts["found"] += 1
        counts[column] = counts.get(column, 0) + 1
        self._published += bool(finding.published)
        if finding.came is FindingOutcome.SWEPT:
            self._entries.append(finding.audit_entry())
        if len(self.findings) < MAX_FINDINGS:
            self.findings.append(finding)

    def record_left_out(self, why: str) -> None:
        """Record, once, what could not be checked."""
        self.left_out[why] = None

    def write_audit_entries(self) -> None:
        """Write the actions since the last call to the audit trail."""
        entries, self._entries = self._entries, []
        if entries:
            record_acts(self.by, entries)

    def report(self) -> SweepReport:
        """Return the report so far."""
        counts = {kind: Tally(**counts) for kind, counts in self._counts.items()}
        return SweepReport(
            dry_run=self.dry_run,
            counts=counts,
            findings=tuple(self.findings),
            unlisted=sum(tally.found for tally in counts.values()) - len(self.findings),
            looked_at=dict(self.looked_at),
            left_out=tuple(self.left_out),
            published=self._published,
            seconds=time.monotonic() - self._started,
        )
