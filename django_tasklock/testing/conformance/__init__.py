"""Conformance tests for a store of locks, for pytest: they test a backend that you write yourself.

    from django_tasklock.conf import Settings
    from django_tasklock.testing.conformance import LapsingContract, LockContract

    class TestMyStore(LockContract, LapsingContract):
        def make(self):
            return MyBackend(Settings())

        def clear(self):
            ...  # lose all data, as a flush does

Every store has to pass ``LockContract`` and ``LapsingContract``. The others depend on what the store can do:

* ``ListingContract``: it lists its locks
* ``WakingContract``: a release wakes the next waiter (``wakes = True``)
* ``PermitContract``: it has permits
* ``PermitWakingContract``: a release of a permit wakes the next waiter (``permits.wakes``)
* ``RateContract``: it has rate limits

The stores of this package pass the same tests. This package needs pytest.
"""

from django_tasklock.testing.conformance.lapsing import LapsingContract
from django_tasklock.testing.conformance.listing import ListingContract
from django_tasklock.testing.conformance.locks import LockContract
from django_tasklock.testing.conformance.permits import PermitContract
from django_tasklock.testing.conformance.rates import RateContract
from django_tasklock.testing.conformance.waking import WakingContract
from django_tasklock.testing.conformance.waking_permits import PermitWakingContract

__all__ = [
    "LapsingContract",
    "ListingContract",
    "LockContract",
    "PermitContract",
    "PermitWakingContract",
    "RateContract",
    "WakingContract",
]
