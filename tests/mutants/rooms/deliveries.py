"""Deliveries of a message and their leases: faults that must not pass."""

from tests.mutants.fault import Fault

FAULTS = [
    Fault(
        "celery/delivery/duplicates.py",
        "a lock is taken over without looking whether its holder is dead",
        "                if living is False:",
        "                if True:",
        "tests/celery/test_redelivery.py",
    ),
    Fault(
        "celery/delivery/duplicates.py",
        "a duplicate ends without coming again",
        "        seconds = send_again(self.message)",
        "        seconds = 0.0",
        "tests/celery/test_redelivery.py",
    ),
    Fault(
        "celery/delivery/duplicates.py",
        "starts are not counted",
        '            self._starts = get_backend().tally(f"starts:{self.mark}")\n            if',
        "            if",
        "tests/celery/test_crash_count.py tests/celery/test_crash_loop.py",
    ),
]
