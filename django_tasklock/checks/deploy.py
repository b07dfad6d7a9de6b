"""Checks of ``check --deploy`` that connect to the store and read the database's schema."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

from django.apps import apps
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, connections, router

from django_tasklock.backends import LockStore
from django_tasklock.backends.contract.refusals import is_local_fault
from django_tasklock.checks.store import check_backend, is_kind, valid_backend
from django_tasklock.db.reconnect import serves_nobody
from django_tasklock.db.session import migrate_command
from django_tasklock.exceptions import BackendUnavailable
from django_tasklock.operations import overdue_sweep
from django_tasklock.types import AcquireRequest, Grant

SAFE_POLICY = "noeviction"
PROBE_LEASE = 10_000  # ms


def check_store(app_configs: Any = None, **kwargs: Any) -> list[checks.CheckMessage]:
    """Report W010: unreachable. E005: refused. W013: may evict locks."""
    valid = valid_backend()
    if valid is None or is_kind(valid[1], "database") or any(one.is_serious() for one in check_backend()):
        return []
    _, backend = valid
    found: list[checks.CheckMessage] = []
    try:
        found += _check_instances(backend)
        found += _check_policy(backend)
        found += _check_acquisition(backend)
    except ImproperlyConfigured:
        pass  # reported as E002
    except BackendUnavailable as error:
        found.append(_report_unavailable(error))
    finally:
        backend.close_idle()
    return found


def _report_unavailable(error: BackendUnavailable) -> checks.CheckMessage:
    if not (error.down or is_local_fault(error)):
        text = f"The store does not let us lock: {error}"
        hint = "Change what it complains of; docs/redis.md has the rights that locks need."
        return checks.Error(text, hint=hint, id="tasklock.E005")
    hint = "Is it up, and can this machine reach it? Until it answers, ON_UNAVAILABLE says what tasks do."
    return checks.Warning(f"The store cannot be reached: {error}", hint=hint, id="tasklock.W010")


def _check_policy(backend: LockStore) -> Iterator[checks.CheckMessage]:
    policy = backend.condition().policy
    if policy not in (None, "", SAFE_POLICY):  # "": this user may not ask
        yield checks.Warning(
            f"The locks' Redis has maxmemory-policy {policy}: when its memory is full it drops locks that are"
            " held, and their tasks run twice.",
            hint=f"Set maxmemory-policy {SAFE_POLICY}, or give the locks a server of their own: the policy is the whole"
            " server's, whatever the database number.",
            id="tasklock.W013",
        )


def _check_instances(backend: LockStore) -> Iterator[checks.CheckMessage]:
    found = backend.instance_states()
    unreachable = [f"{state.place} ({state.error})" for state in found if state.error]
    if unreachable:
        yield checks.Warning(
            f"{len(found) - len(unreachable)} of {len(found)} Redis instances answer, not {' nor '.join(unreachable)}.",
            hint="Are they up, and can this machine reach them? Locks need a majority of them.",
            id="tasklock.W010",
        )


def _check_acquisition(backend: LockStore) -> Iterator[checks.CheckMessage]:
    """Acquire and release a lock, which tests rights, scripts, writability and free memory at once."""
    request = AcquireRequest(f"tasklock-check:{secrets.token_hex(8)}", secrets.token_hex(16), PROBE_LEASE, PROBE_LEASE)
    if not isinstance(backend.acquire(request), Grant) or not backend.release(request.name, request.token):
        text = "The store granted a lock and did not know it a moment later."
        yield checks.Error(text, hint="Does LOCATION lead to one server that can be written to?", id="tasklock.E005")


def check_sweeps(app_configs: Any = None, **kwargs: Any) -> list[checks.CheckMessage]:
    """Report W025: no sweep runs."""
    try:
        overdue = overdue_sweep()
    except (DatabaseError, ImproperlyConfigured, OSError):
        return []  # reported as W010 or W011, or the project has no database
    if not overdue:
        return []
    hint = "Let beat or cron run it every five minutes, on a queue that a worker consumes: docs/deploy.md."
    return [checks.Warning(f"{overdue[0].upper()}{overdue[1:]}.", hint=hint, id="tasklock.W025")]


def check_tables(app_configs: Any = None, **kwargs: Any) -> list[checks.CheckMessage]:
    """Report W010: the database is unreachable. E005: it refuses. W011: a table or a column of this app is missing."""
    valid = valid_backend()
    needed = valid is not None and is_kind(valid[1], "database")
    missing: dict[str, str] = {}  # missing table or column -> database alias
    for model in apps.get_app_config("tasklock").get_models():
        if not model._meta.managed or model._meta.proxy:
            continue
        connection = connections[router.db_for_write(model)]
        if connection.vendor == "unknown":  # the project has no database; only some features need one
            continue
        try:
            missing |= dict.fromkeys(_find_missing(connection, model), connection.alias)
        except (DatabaseError, OSError) as error:
            if not needed:
                return []
            what = " ".join(str(error).split())
            if not serves_nobody(connection, error):
                text = f"The database {connection.alias!r}, where the locks are, does not let us lock: {what}"
                return [checks.Error(text, hint="Change what it complains of.", id="tasklock.E005")]
            text = f"The database {connection.alias!r}, where the locks are, cannot be reached: {what}"
            return [checks.Warning(text, hint="Is it up, and are its settings right?", id="tasklock.W010")]
        finally:
            if not connection.in_atomic_block:
                connection.close()
    if not missing:
        return []
    text = f"Missing in the database: {', '.join(sorted(missing))}."
    commands = ", ".join(f"python {migrate_command(alias)}" for alias in sorted(set(missing.values())))
    return [checks.Warning(text, hint=f"Run: {commands}", id="tasklock.W011")]


def _find_missing(connection: Any, model: Any) -> set[str]:
    table = model._meta.db_table
    with connection.cursor() as cursor:
        if table not in connection.introspection.table_names(cursor):
            return {f"table {table}"}
        existing = {column.name for column in connection.introspection.get_table_description(cursor, table)}
    return {
        f"column {table}.{field.column}" for field in model._meta.local_concrete_fields if field.column not in existing
    }
