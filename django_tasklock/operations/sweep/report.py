"""What a sweep found and did: frozen values for the doors, and the log they are made from."""

from __future__ import annotations

import enum
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from django.utils.translation import gettext_noop

from django_tasklock.operations.audit import Deed, broken_off, record_acts
from django_tasklock.operations.values import Actor

LISTED = 1000
"""Findings that a report lists; all of them are counted."""


class Kind(enum.StrEnum):
    """The classes of what is left behind, in the order in which they are swept."""

    EXPIRED = "expired"
    NO_EXPIRY = "no_expiry"
    OVERDUE = "overdue"
    DEAD = "dead"
    FINISHED = "finished"
    DIFFERS = "differs"
    ABANDONED = "abandoned"
    PARKED = "parked"


CLASSES: Mapping[Kind, tuple[str, str]] = {
    Kind.EXPIRED: (gettext_noop("index entries of locks that lapsed"), "forgotten"),
    Kind.NO_EXPIRY: (gettext_noop("locks without expiry"), "given one"),
    Kind.OVERDUE: (gettext_noop("locks held beyond their timeout"), "released"),
    Kind.DEAD: (gettext_noop("locks whose holder's process is dead"), "released"),
    Kind.FINISHED: (gettext_noop("locks whose row is finished"), "released"),
    Kind.DIFFERS: (gettext_noop("locks whose row is claimed by another token"), "told"),
    Kind.ABANDONED: (gettext_noop("claimed rows without a live lock"), "put back"),
    Kind.PARKED: (gettext_noop("parked messages behind no lock"), "promoted"),
}
"""Each class in words, which have translations, and what is done with it."""


class Came(enum.StrEnum):
    """What came of a finding."""

    SWEPT = "swept"
    WOULD = "would_be_swept"
    """Only in a dry run."""
    CHANGED = "changed"
    """It was no longer so when it was looked at again: nothing was done."""
    KEPT = "kept"
    """It is so, and nothing that is safe can be done about it: ``why`` says what to look at."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found. Texts are for people, and hold no token."""

    kind: Kind
    came: Came
    why: str
    """The evidence, or why it was kept."""
    name: str = ""
    """The lock; empty where a row's is not known."""
    row: str = ""
    """The guarded row, ``videos.video:42``."""
    holder: str = ""
    put_back: bool = False
    """Whether the row may be claimed again (in a dry run: would be)."""
    published: str = ""
    """The id of the message with which its task was published again."""
    unpublished: str = ""
    """Why it was not, although that was asked for."""

    @property
    def deed(self) -> Deed:
        """For the audit trail."""
        words = [CLASSES[self.kind][1]]
        if self.put_back:
            words = [f"{self.row} put back"] if self.kind is Kind.ABANDONED else [*words, f"{self.row} put back"]
        if self.published:
            words.append(f"published again as {self.published}")
        return Deed(self.name or self.row, "sweep", f"{self.kind}: {self.why}", ", ".join(words))

    def as_dict(self) -> dict[str, str | bool]:
        """Return the values for JSON."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return {name: value if value is True else str(value) for name, value in values.items() if value}


@dataclass(frozen=True, slots=True)
class Tally:
    """How many of one class were ``found``. Each was ``acted`` on (in a dry run: would have been), was no longer so at
    the second look (``changed``), or was ``kept``."""

    found: int = 0
    acted: int = 0
    changed: int = 0
    kept: int = 0


@dataclass(frozen=True, slots=True)
class SweepReport:
    """What one sweep found and did."""

    dry_run: bool
    tallies: Mapping[Kind, Tally]
    """Of every class, in order."""
    findings: tuple[Finding, ...]
    """The first thousand; expired index entries are only counted."""
    unlisted: int
    """How many more there were."""
    looked_at: Mapping[str, int]
    """How many ``entries`` of what lapsed, ``locks``, ``rows`` and ``parked`` messages were looked at."""
    left_out: tuple[str, ...]
    """What could not be looked at, and why."""
    published: int
    """How many tasks were published again."""
    seconds: float

    @property
    def swept(self) -> int:
        """How much was put right; in a dry run, what would have been."""
        return sum(tally.acted for tally in self.tallies.values())

    @property
    def rate(self) -> float:
        """Things looked at in a second."""
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
    """A report while it is written."""

    dry_run: bool
    counts: dict[Kind, dict[str, int]] = field(default_factory=lambda: {kind: {} for kind in Kind})
    findings: list[Finding] = field(default_factory=list)
    unlisted: int = 0
    looked_at: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("entries", "locks", "rows", "parked"), 0))
    left_out: dict[str, None] = field(default_factory=dict)
    published: int = 0
    began: float = field(default_factory=time.monotonic)
    deeds: list[Deed] = field(default_factory=list)

    def add(self, finding: Finding) -> None:
        """Count a finding, and list it while there is room."""
        word = {Came.SWEPT: "acted", Came.WOULD: "acted", Came.CHANGED: "changed", Came.KEPT: "kept"}[finding.came]
        self.count(finding.kind, found=1, **{word: 1})
        self.published += bool(finding.published)
        if finding.came is Came.SWEPT:
            self.deeds.append(finding.deed)
        if len(self.findings) < LISTED:
            self.findings.append(finding)
        else:
            self.unlisted += 1

    def count(self, kind: Kind, **more: int) -> None:
        """Count without listing."""
        for word, number in more.items():
            self.counts[kind][word] = self.counts[kind].get(word, 0) + number

    def leave_out(self, why: str) -> None:
        """Note, once, what could not be looked at."""
        self.left_out[why] = None

    @contextmanager
    def acting(self, name: str, kind: Kind, why: str) -> Iterator[None]:
        """Note for the audit trail that the block, which acts on a finding, broke off, if it does."""
        noted = len(self.deeds)
        try:
            yield
        except BaseException as error:
            if not self.dry_run and len(self.deeds) == noted:
                self.deeds.append(Deed(name, "sweep", f"{kind}: {why}", broken_off(error)))
            raise

    def write(self, by: Actor) -> None:
        """Put what was done since the last time into the audit trail."""
        if self.deeds:
            record_acts(by, self.deeds)
        self.deeds = []

    def report(self) -> SweepReport:
        """Return the report as it stands."""
        return SweepReport(
            dry_run=self.dry_run,
            tallies={kind: Tally(**counts) for kind, counts in self.counts.items()},
            findings=tuple(self.findings),
            unlisted=self.unlisted,
            looked_at=dict(self.looked_at),
            left_out=tuple(self.left_out),
            published=self.published,
            seconds=time.monotonic() - self.began,
        )
