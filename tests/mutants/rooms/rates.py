"""Limits: faults that must not pass."""

from tests.mutants.fault import Fault

LIMITER = "tests/rates/test_rate_limiter.py"

FAULTS = [
    Fault(
        "rates/reservation.py",
        "a call that waits for one limit counts at the others meanwhile",
        "            if any(-other.late < left - other.margin for other in self.slots[:-1]):",
        "            if False:",
        f"{LIMITER}::TestTogether -k 'holds_nothing and memory'",
    ),
    Fault(
        "backends/ledger/verbs.py",
        "after a raise calls wait behind what was booked under the lower limit",
        "    book.follow_raise(cost)\n    return book_slot(",
        "    return book_slot(",
        "tests/contract/test_conformance.py -k 'after_a_raise and memory'",
    ),
    Fault(
        "backends/lua/_rate_write.lua",
        "a limiter of which only tenants are used is in no list",
        "for i = 1, ARGV[2] == '' and 1 or 2 do",
        "for i = ARGV[2] == '' and 1 or 2, ARGV[2] == '' and 1 or 2 do",
        "tests/contract/test_conformance.py -k 'tenants_are_named and redis'",
    ),
    Fault(
        "decorators/wrapping.py",
        "a second limit is not seen behind a decorator that copies no attribute",
        'getattr(function, "__wrapped__", None)\n\n\ndef is_async',
        "None\n\n\ndef is_async",
        f"{LIMITER}::TestDecorator -k 'second_limit and wrapped'",
    ),
    Fault(
        "rates/reservation.py",
        "a slot is not confirmed",
        "            if confirms or not slot.is_due:",
        "            if not slot.is_due:",
        "tests/rates/test_rate_waiters.py -k half_a_second",
    ),
    Fault(
        "rates/reservation.py",
        "a caller that is later than the margin makes its call",
        "        return self.late <= self.margin and ",
        "        return ",
        f"{LIMITER}::TestSignals -k memory",
    ),
    Fault(
        "rates/reservation.py",
        "a caller that is interrupted asleep keeps its slot",
        "        except BaseException:\n            self.cancel()\n            raise",
        "        except BaseException:\n            raise",
        f"{LIMITER}::TestCancelling -k 'interrupted and memory'",
    ),
    Fault(
        "rates/outage.py",
        "a store that is up but refuses opens the limit",
        'goes_on = policy == "open" and error.down',
        'goes_on = policy == "open"',
        "tests/rates/test_rate_outage.py",
    ),
    Fault(
        "rates/limiter.py",
        "who forgets the tenant has the quota of all",
        "        limiter = self.tenant(None) if self.limit.tenants and self.shared is None else self\n",
        "        limiter = self\n",
        f"{LIMITER}::TestTenants -k memory",
    ),
    Fault(
        "rates/limiter.py",
        "a tenant has no quota beside the shared limit",
        "        limiter.terms = limit.terms(limiter.name, own)",
        "        limiter.terms = whole.terms",
        f"{LIMITER}::TestTenants -k memory",
    ),
]
