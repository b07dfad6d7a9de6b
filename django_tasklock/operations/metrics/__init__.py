"""Counts of locks, limiters and messages, and their present state, as the admin, REST and Prometheus show them.

The counts are those of all processes, killed ones included: the store counts in the same step as it acts.
"""

from django_tasklock.operations.metrics.broker import count_messages, count_stuck
from django_tasklock.operations.metrics.gauges import Gauges, LimiterGauge, read_gauges
from django_tasklock.operations.metrics.history import PastHold, last_holds
from django_tasklock.operations.metrics.totals import read_hours, read_totals
from django_tasklock.operations.metrics.values import (
    Histogram,
    HourOfCounts,
    KindCounts,
    LimiterCounts,
    MessageCounts,
    Totals,
)

__all__ = [
    "Gauges",
    "Histogram",
    "HourOfCounts",
    "KindCounts",
    "LimiterCounts",
    "LimiterGauge",
    "MessageCounts",
    "PastHold",
    "Totals",
    "count_messages",
    "count_stuck",
    "last_holds",
    "read_gauges",
    "read_hours",
    "read_totals",
]
