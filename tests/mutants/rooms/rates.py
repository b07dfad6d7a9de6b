"""Limits: faults that must not pass."""

from tests.mutants.fault import Fault

FAULTS = [
    Fault(
        "rates/reservation.py",
        "a slot is not confirmed",
        "            if confirms or not slot.is_due:",
        "            if not slot.is_due:",
        "tests/rates",
    ),
    Fault(
        "rates/outage.py",
        "a store that is up but refuses opens the limit",
        'goes_on = policy == "open" and error.down',
        'goes_on = policy == "open"',
        "tests/rates",
    ),
]
