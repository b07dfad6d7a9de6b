"""Index entries of orphaned locks: deleted in bulk; the store checks each in the same step."""

from __future__ import annotations

from django_tasklock.backends.contract.locks import LockStore
from django_tasklock.backends.contract.queries import Query
from django_tasklock.operations.sweep.options import SweepOptions
from django_tasklock.operations.sweep.report import Kind, SweepLog
from django_tasklock.operations.sweep.stream import of_kind

AT_ONCE = 1000
"""Entries per step; the store serves no other client during a step."""


def sweep_entries(backend: LockStore, options: SweepOptions, notes: SweepLog) -> None:
    """Delete index entries of orphaned locks, or count them in a dry run. An existing lock is never touched."""
    before = None
    if options.age is not None:
        oldest = backend.page(Query("orphaned", limit=1)).records
        if not oldest:
            return
        before = oldest[0].now - options.age  # on the store's clock
    if options.dry_run:
        _count(backend, before, options, notes)
        return
    offset = idle = 0
    # One step without a change may be due to entries of existing locks, which it moves to their index: that is no end.
    while idle < 2 and not options.over:
        pruned = backend.prune(AT_ONCE, lapsed_before=before, prefix=options.prefix, offset=offset)
        offset += pruned.kept
        idle = 0 if any(pruned) else idle + 1
        notes.count(Kind.EXPIRED, found=pruned.removed, acted=pruned.removed)
        notes.looked_at["entries"] += sum(pruned)


def _count(backend: LockStore, before: int | None, options: SweepOptions, notes: SweepLog) -> None:
    if before is None and not options.prefix:
        number = backend.counts().orphaned
        notes.looked_at["entries"] += number
        notes.count(Kind.EXPIRED, found=number, acted=number)
        return
    for page in of_kind(backend, Query("orphaned", limit=AT_ONCE)):
        old = [one for one in page if before is None or one.now + (one.ttl or 0) <= before]
        number = sum(one.name.startswith(options.prefix) for one in old)
        notes.looked_at["entries"] += len(page)
        notes.count(Kind.EXPIRED, found=number, acted=number)
        if len(old) < len(page) or options.over:
            return  # entries are sorted by the end of their leases, so the rest is too recent
