"""Metrics: faults that must not pass."""

from tests.mutants.fault import Fault

FAULTS = [
    Fault(
        "metrics/views.py",
        "the metrics of everybody for everybody",
        "    if (refused := refusal(request)) is not None:\n        return refused\n",
        "",
        "tests/doors/test_metrics.py::TestView",
    ),
    Fault(
        "metrics/collector.py",
        "locks that were waited for are not among those that were granted",
        "    event = AT_ONCE.get(event, event)\n",
        "",
        "tests/doors/test_metrics.py::TestCounts",
    ),
    Fault(
        "metrics/collector.py",
        "a histogram is not cumulative",
        "sum(numbers[kind][: number + 1])",
        "numbers[kind][number]",
        "tests/doors/test_metrics.py::TestCounts",
    ),
    Fault(
        "operations/state.py",
        "a store that is down counts as up",
        "return Gauges(store_up=False,",
        "return Gauges(",
        "tests/doors/test_metrics.py::TestView",
    ),
    Fault(
        "operations/state.py",
        "the longest hold is in milliseconds",
        "max(0, one.now - one.at) / 1000",
        "max(0, one.now - one.at)",
        "tests/doors/test_metrics.py::TestGauges",
    ),
    Fault(
        "operations/sweep/runs.py",
        "a sweep of some names counts as one of all",
        'filter(scope="", problem="")',
        'filter(problem="")',
        "tests/doors/test_metrics.py::TestGauges",
    ),
]
