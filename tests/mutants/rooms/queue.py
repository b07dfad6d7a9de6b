"""The queue of parked messages: faults that must not pass."""

from tests.mutants.fault import Fault

FAULTS = [
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
