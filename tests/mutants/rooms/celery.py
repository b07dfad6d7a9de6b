"""Deliveries, messages and the queue: faults that must not pass."""

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
    Fault(
        "celery/delivery/line.py",
        "the lock is not looked at after a message was parked",
        "        if not self._flag_holder():\n            self.promote_next()\n",
        "        self._flag_holder()\n",
        "tests/celery/test_parking.py",
    ),
    Fault(
        "celery/queue/promoter.py",
        "a message that waits overtakes one that was published before it",
        '    if row.mode == "queue" and _awaits_another(row, due.name):',
        "    if False:",
        "tests/celery/test_parking.py tests/celery/test_queue.py",
    ),
]
