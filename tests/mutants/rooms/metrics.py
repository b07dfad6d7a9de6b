"""Metrics: faults that must not pass."""

from tests.mutants.fault import Fault

FAULTS = [
    Fault(
        "metrics/views.py",
        "the metrics of everybody for everybody",
        "    if (refused := refusal(request)) is not None:\n        return refused\n",
        "",
        "tests/doors/test_metrics.py",
    ),
]
