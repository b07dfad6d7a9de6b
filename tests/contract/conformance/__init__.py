"""The contracts that every store keeps, as tests. They are private, as the store contract is.

A class derives from those that its store keeps, and has ``make()``, which returns another object for the same store, as
another process would have it, and ``clear()``, which loses all data, as a flush does. Every store has to pass
``LockContract`` and ``LapsingContract``. The others depend on what the store can do:

* ``ListingContract``: it lists its locks
* ``WakingContract``: a release wakes the next waiter (``wakes = True``)
* ``PermitContract``: it has permits
* ``PermitWakingContract``: a release of a permit wakes the next waiter (``permits.wakes``)
* ``RateContract``: it has rate limits
"""

from tests.contract.conformance.lapsing import LapsingContract
from tests.contract.conformance.listing import ListingContract
from tests.contract.conformance.locks import LockContract
from tests.contract.conformance.permits import PermitContract
from tests.contract.conformance.rates import RateContract
from tests.contract.conformance.waking import WakingContract
from tests.contract.conformance.waking_permits import PermitWakingContract

__all__ = [
    "LapsingContract",
    "ListingContract",
    "LockContract",
    "PermitContract",
    "PermitWakingContract",
    "RateContract",
    "WakingContract",
]
