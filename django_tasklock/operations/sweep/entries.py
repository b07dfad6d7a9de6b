"""Index entries of orphaned locks: deleted in bulk; the store checks each in the same step."""

from __future__ import annotations

from django_tasklock import counts
from django_tasklock.backends.contract.locks import LockStore
from django_tasklock.backends.contract.queries import Query
from django_tasklock.operations.sweep.options import SweepOptions
from django_tasklock.operations.sweep.report import Kind, SweepLog
from django_tasklock.operations.sweep.stream import read_pages

BATCH_SIZE = 1000
"""Entries per step; the store serves no other client during a step."""


def sweep_entries(backend: LockStore, options: SweepOptions, log: SweepLog) -> None:
    """Delete index entries of orphaned locks, or count them in a dry run. An existing lock is never touched."""
    before = None
    if options.age is not None:
        oldest = backend.page(Query("orphaned", limit=1)).records
        if not oldest:
            return
        before = oldest[0].now - options.age  # on the store's clock
    if options.dry_run:
        _count_entries(backend, before, options, log)
        return
    offset = unchanged_steps = 0
    # One step without a change may be due to entries of existing locks, which it moves to their index: that is no end.
    while unchanged_steps < 2 and not options.timed_out:
        pruned = backend.prune(BATCH_SIZE, lapsed_before=before, prefix=options.prefix, offset=offset)
        offset += pruned.kept
        unchanged_steps = 0 if any(pruned) else unchanged_steps + 1
        log.count(Kind.EXPIRED, found=pruned.removed, acted=pruned.removed)
        counts.count(counts.EXPIRED, "", number=pruned.removed)
        log.looked_at["entries"] += sum(pruned)


def _count_entries(backend: LockStore, before: int | None, options: SweepOptions, log: SweepLog) -> None:
    if before is None and not options.prefix:
        number = backend.counts().orphaned
        log.looked_at["entries"] += number
        log.count(Kind.EXPIRED, found=number, acted=number)
        return
    for page in read_pages(backend, Query("orphaned", limit=BATCH_SIZE)):
        old = [one for one in page if before is None or one.now + (one.ttl or 0) <= before]
        number = sum(one.name.startswith(options.prefix) for one in old)
        log.looked_at["entries"] += len(page)
        log.count(Kind.EXPIRED, found=number, acted=number)
        if len(old) < len(page) or options.timed_out:
            return  # entries are sorted by the end of their leases, so the rest is too recent
