"""What a store of locks promises, as tests for pytest: for whoever writes a backend of their own.

    from django_tasklock.conf import Settings
    from django_tasklock.testing.conformance import LapsingContract, LockContract

    class TestMyStore(LockContract, LapsingContract):
        def make(self):
            return MyBackend(Settings())

        def clear(self):
            ...  # lose all data, as a flush does

``LockContract`` and ``LapsingContract`` hold for every store. A store that lists its locks takes ``ListingContract``
as well, one whose releases wake who waits (``wakes = True``) ``WakingContract``; one that has permits takes
``PermitContract``, and ``PermitWakingContract`` if their releases wake who waits, one that has rate limits
``RateContract``. Our own stores are tested by the same.

Needs pytest, which nothing else of this package imports.
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
