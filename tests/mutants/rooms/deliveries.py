"""Deliveries of a message, their leases and their ends: faults that must not pass."""

from tests.mutants.fault import Fault

AGAIN = "tests/celery/test_deliveries.py::TestADuplicate"
COUNT = "tests/celery/test_deliveries.py::TestTheCount"

FAULTS = [
    Fault(
        "celery/delivery/duplicates.py",
        "a lock is taken over without looking whether its holder is dead",
        "                if living is False:",
        "                if True:",
        AGAIN,
    ),
    Fault(
        "celery/delivery/duplicates.py",
        "the lock of another message's holder on another machine is taken for abandoned",
        "    return record is not None and abandoned(record) and free_dead(record, name)",
        "    return record is not None and free_dead(record, name)",
        "tests/celery/test_deliveries.py::TestAnothersLock",
    ),
    Fault(
        "celery/delivery/duplicates.py",
        "a duplicate ends without coming again",
        "        seconds = send_again(self.message)",
        "        seconds = 0.0",
        AGAIN,
    ),
    Fault(
        "celery/delivery/duplicates.py",
        "an earlier try that comes late runs beside the later one",
        "            elif tries_later < 0:",
        "            elif False:",
        "tests/celery/test_deliveries.py::TestADuplicate",
    ),
    Fault(
        "celery/delivery/duplicates.py",
        "a message that has ended is not marked as done",
        '            get_backend().tally(f"done:{mark}")',
        "            pass",
        AGAIN,
    ),
    Fault(
        "celery/delivery/duplicates.py",
        "a message is marked as done before its result is stored",
        " or sys.exception() is not None:",
        ":",
        AGAIN,
    ),
    Fault(
        "celery/delivery/duplicates.py",
        "starts are not counted",
        '            self._starts = get_backend().tally(f"starts:{self.mark}")\n            if',
        "            if",
        COUNT,
    ),
    Fault(
        "celery/delivery/duplicates.py",
        "a run that ends in order stays counted as a crash",
        'tally(f"starts:{self.mark}", -self._starts)',
        'tally(f"starts:{self.mark}", 0)',
        COUNT,
    ),
    Fault(
        "celery/delivery/cleanup.py",
        "a lock is freed while the process that a time limit kills still lives",
        "            if alive(record.holder) is False:",
        "            if True:",
        "tests/celery/test_endings_killed.py::test_a_hard_time_limit_frees_nothing_before_the_child_is_dead",
    ),
    Fault(
        "celery/delivery/run.py",
        "a message whose row is never committed is tried for ever",
        "        if waited < patience:",
        "        if True:",
        "tests/celery/test_missing_row.py::TestTries",
    ),
    Fault(
        "celery/delivery/callers.py",
        "a message runs under the lock of another tenant than its publisher's",
        '    return header_of(task.request).get("tenant") if is_body(decorated) else None',
        "    return None",
        "tests/celery/test_tenants.py::TestMessages",
    ),
    Fault(
        "celery/messages/renewal.py",
        "a living worker gives up the leases of its messages",
        "        index.renew(message.delivery_tag for message in messages)",
        "        index.renew([])",
        "tests/celery/test_message_lease.py::test_it_is_delivered_once_while_its_worker_lives_and_again_when_that_is_dead",
    ),
    Fault(
        "celery/messages/renewal.py",
        "what dead workers had is not put back before kombu looks",
        "                index.restore()",
        "                pass",
        "tests/celery/test_message_lease.py::test_it_is_delivered_once_while_its_worker_lives_and_again_when_that_is_dead",
    ),
    Fault(
        "celery/messages/index.py",
        "a renewal revives a message that was acknowledged meanwhile",
        "dict.fromkeys(chunk, now), xx=True)",
        "dict.fromkeys(chunk, now))",
        "tests/celery/test_message_index.py",
    ),
    Fault(
        "celery/messages/outlived.py",
        "a task that waits for its lock is taken for one that outlives it",
        "        elif request not in self._until:",
        "        elif False:",
        "tests/celery/test_message_lease.py::TestWhatOutlivesItsLock",
    ),
    Fault(
        "celery/messages/outlived.py",
        "a body that outlives its lock is killed at once",
        "            return monotonic() - ended >= self.grace",
        "            return True",
        "tests/celery/test_message_lease.py::TestTasksThatOutliveTheirLock::test_one_that_ends_by_itself_meanwhile_runs_once",
    ),
    Fault(
        "celery/delivery/duplicates.py",
        "a body that always outlives its lock is started for ever",
        '        if not get_backend().tally(f"starts:{self.mark}", 0):',
        "        if False:",
        COUNT,
    ),
    Fault(
        "celery/receivers.py",
        "a message that kills its workers is retried for CrashLoop",
        "Task.dont_autoretry_for = (StaleClaim, CrashLoop)",
        "Task.dont_autoretry_for = (StaleClaim,)",
        "tests/celery/test_deliveries.py::TestTheCount",
    ),
]
