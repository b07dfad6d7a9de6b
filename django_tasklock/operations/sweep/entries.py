"""Index entries of locks that lapsed: forgotten in bulk, each after a look that is part of the same step."""

from __future__ import annotations

from django_tasklock.backends.contract.locks import LockStore
from django_tasklock.backends.contract.queries import Query
from django_tasklock.operations.sweep.options import SweepOptions
from django_tasklock.operations.sweep.report import Kind, SweepLog
from django_tasklock.operations.sweep.stream import of_kind

AT_ONCE = 1000
"""Entries in one step: the store serves nobody else meanwhile."""


def sweep_entries(backend: LockStore, options: SweepOptions, notes: SweepLog) -> None:
    """Forget index entries of locks that lapsed, or count them in a dry run. A lock that exists is never touched."""
    before = None
    if options.age is not None:
        oldest = backend.page(Query("orphaned", limit=1)).records
        if not oldest:
            return
        before = oldest[0].now - options.age  # by the store's clock
    if options.dry_run:
        _count(backend, before, options, notes)
        return
    offset = idle = 0
    while idle < 2 and not options.over:  # a step whose entries all exist puts them where they belong, and is no end
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
            return  # the one that lapsed first comes first
