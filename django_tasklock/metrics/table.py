"""All metrics for Prometheus; docs/metrics.md has the same table, which a test compares."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Metric(NamedTuple):
    """One metric. Counters are named as Prometheus stores them, with ``_total`` at the end."""

    name: str
    type: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    help: str


KIND, LIMITER = ("kind",), ("limiter",)

METRICS = tuple(
    Metric(*row)
    for row in (
        ("tasklock_acquired_total", "counter", KIND, "Locks that were granted."),
        ("tasklock_released_total", "counter", KIND, "Locks that their holders released."),
        ("tasklock_expired_total", "counter", KIND, "Leases that ran out, counted when that is detected."),
        ("tasklock_deleted_total", "counter", KIND, "Locks that were deleted by hand, or evicted, before their time."),
        ("tasklock_forced_total", "counter", KIND, "Locks that were released by force."),
        ("tasklock_transferred_total", "counter", KIND, "Locks kept for the retry of a task, or taken over by it."),
        ("tasklock_lost_total", "counter", KIND, "Holders that learned, while they ran, that they had lost the lock."),
        ("tasklock_conflicts_total", "counter", ("kind", "action"), "Times that a lock was busy, by what was done."),
        ("tasklock_wait_seconds", "histogram", KIND, "Seconds from asking for a lock to having it."),
        ("tasklock_hold_seconds", "histogram", KIND, "Seconds for which released locks were held."),
        ("tasklock_limiter_granted_total", "counter", ("limiter", "how"), "Calls let through, at_once or waited."),
        ("tasklock_limiter_wait_seconds", "histogram", LIMITER, "Seconds for which calls had to wait; at once is 0."),
        ("tasklock_limiter_hold_seconds", "histogram", LIMITER, "Seconds for which released permits were held."),
        ("tasklock_limiter_refused_total", "counter", LIMITER, "Calls that were refused."),
        ("tasklock_limiter_cancelled_total", "counter", LIMITER, "Reservations that were cancelled."),
        ("tasklock_limiter_pushback_total", "counter", LIMITER, "Pauses that the remote side requested."),
        ("tasklock_limiter_expired_total", "counter", LIMITER, "Permits whose lease ran out."),
        ("tasklock_limiter_forced_total", "counter", LIMITER, "Permits that were released by force."),
        ("tasklock_messages_total", "counter", ("kind", "event"), "Parked messages: parked, promoted ... by task."),
        ("tasklock_stale_writes_total", "counter", ("model",), "Refused writes of stale claims."),
        ("tasklock_message_renewals_late_total", "counter", (), "Times that a worker renewed its messages too late."),
        (
            "tasklock_queue_messages",
            "gauge",
            ("queue",),
            "Messages of a queue (Redis): waiting, parked, and fetched but not acknowledged.",
        ),
        ("tasklock_messages_stuck", "gauge", (), "Messages given back by workers whose slots do not go on."),
        ("tasklock_store_up", "gauge", (), "1 if the store answers, else 0."),
        ("tasklock_held", "gauge", (), "Locks that are held now."),
        ("tasklock_no_expiry", "gauge", (), "Held locks that nothing but a release ends."),
        ("tasklock_orphaned", "gauge", (), "Locks whose lease ran out, which is not detected yet."),
        ("tasklock_waiting", "gauge", (), "Callers that wait in their processes for a lock."),
        ("tasklock_longest_held_seconds", "gauge", (), "Seconds for which the oldest hold has lasted."),
        ("tasklock_parked", "gauge", (), "Messages that wait for their locks in the database."),
        ("tasklock_oldest_parked_seconds", "gauge", (), "Seconds since the oldest of them was parked."),
        (
            "tasklock_last_sweep_age_seconds",
            "gauge",
            (),
            "Seconds since the last sweep of everything; missing if there is none.",
        ),
        (
            "tasklock_stale_claims",
            "gauge",
            (),
            "Claimed rows without a live lock that the last sweep left.",
        ),
        ("tasklock_limiter_members", "gauge", LIMITER, "Permits of a concurrency limiter that are taken now."),
        (
            "tasklock_limiter_used_ratio",
            "gauge",
            LIMITER,
            "Share of the limit that is used, 0 to 1, of its fullest rate.",
        ),
        ("tasklock_limiter_waiting", "gauge", LIMITER, "Calls that wait for their turn."),
        ("tasklock_limiter_paused_seconds", "gauge", LIMITER, "Seconds until the end of a pause, 0 if not paused."),
        (
            "{limiter}_rate_limiter_requests_per_minute",
            "gauge",
            (),
            "Calls a minute, by the window of its fullest rate.",
        ),
        ("{limiter}_rate_limiter_wait_time", "gauge", (), "Seconds that a call has waited on average; at once is 0."),
        ("{limiter}_rate_limiter_throttled_count", "counter", (), "Calls that had to wait, or were refused."),
        ("db_pool_connections_in_use", "gauge", ("database",), "Connections of this process that are in use."),
        ("db_connection_hold_time", "gauge", ("database",), "Seconds for which the oldest connection in use is held."),
        ("db_pool_connection_timeouts", "counter", ("database",), "Times that no connection was free in time."),
    )
)
"""All metrics in the order of their output. ``{limiter}``: one metric for each rate limit, with its name."""

BY_NAME = {metric.name: metric for metric in METRICS}
"""The metrics by name."""
