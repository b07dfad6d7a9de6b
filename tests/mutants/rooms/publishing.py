"""Names of locks, ``unique``, options of a call, reservations in messages: faults that must not pass."""

from tests.mutants.fault import Fault

FAULTS = [
    Fault(
        "celery/fingerprint.py",
        "the type of an argument does not count in the name of its lock",
        '    return f"{kind}({len(inner)}:{inner})"\n\n\ndef _text_of_pairs',
        '    return f"({len(inner)}:{inner})"\n\n\ndef _text_of_pairs',
        "tests/celery/test_once_keys.py",
    ),
    Fault(
        "celery/task.py",
        "a worker computes the lock's name anew",
        '        name = header.get("key") or key or self.lock_name(*args, **kwargs)',
        "        name = key or self.lock_name(*args, **kwargs)",
        "tests/celery/test_once_keys.py",
    ),
    Fault(
        "celery/task.py",
        "a worker ignores the options that the caller has chosen",
        '        overrides = options.pop_overrides(self, kwargs, header.get("once"))',
        "        overrides = options.pop_overrides(self, kwargs, None)",
        "tests/celery/test_once_calls.py",
    ),
    Fault(
        "celery/task.py",
        "a retry with other arguments keeps what made the first try unique, and its place in the line",
        '    return {"key": name, "once": header.get("once") or {}, **{',
        '    return {**header, "key": name, **{',
        "tests/celery/test_once_headers.py",
    ),
    Fault(
        "celery/message.py",
        "a header that was written for another message counts",
        "    return bool(bound_id == task_id and (bound_task == task or not isinstance(task, str)))",
        "    return True",
        "tests/celery/test_once_headers.py",
    ),
    Fault(
        "celery/unique.py",
        "a message frees what keeps another one unique",
        "    if record is None or record.holder.task_id != task_id or (",
        "    if record is None or (",
        "tests/celery/test_unique.py",
    ),
    Fault(
        "celery/unique.py",
        "an older result of the same id frees what keeps another one unique",
        "or left is None or time.time() + left <= taken:",
        "or left is None:",
        "tests/celery/test_unique.py::TestDropped -k without_this_package",
    ),
    Fault(
        "celery/queue/promoter.py",
        "a message that a worker drops stays unique",
        "    release_unique(header, task_id, on_its_way=True)\n",
        "",
        "tests/celery/test_unique.py::TestDropped -k not_accepted",
    ),
    Fault(
        "celery/unique.py",
        "what could not be published stays unique",
        "        _log_outage(lease.name, lambda: lease.backend.release(lease.name, lease.token))\n        raise",
        "        raise",
        "tests/celery/test_unique.py",
    ),
    Fault(
        "celery/unique.py",
        "a message is no longer unique while it waits for its retry",
        "        if isinstance(error, Retry | Parked):\n            return True",
        "        if isinstance(error, Parked):\n            return True",
        "tests/celery/test_unique.py",
    ),
    Fault(
        "celery/unique.py",
        "a message that is due later is given up as if it were due now",
        "    lifetime = unique_for + max(0, round(1000 * due))",
        "    lifetime = unique_for",
        "tests/celery/test_unique.py",
    ),
    Fault(
        "celery/delivery/defer.py",
        "a message that is sent again has one retry less",
        "    send(message.to_signature(countdown=seconds, **header), message.task)",
        "    send(message.to_signature(countdown=seconds, **header).set(retries=message.retries + 1), message.task)",
        "tests/celery/test_once_task.py",
    ),
    Fault(
        "celery/rates.py",
        "a message books again on each arrival",
        '        token = self.carried.get("token")',
        "        token = None",
        "tests/celery/test_rate_tasks.py::TestWaiting::test_it_is_sent_again_as_the_same_message_with_a_countdown_and_its"
        "_reservation",
    ),
    Fault(
        "celery/rates.py",
        "a reservation is used again that another delivery may have used",
        "        if token and (not may_have_been_used(self.message.task, self.request) or is_future(",
        "        if token and (True or is_future(",
        "tests/celery/test_rate_tasks.py::TestEndings::test_what_lay_in_a_worker_that_was_stopped_for_a_lease_books_another"
        "_reservation",
    ),
    Fault(
        "celery/rates.py",
        "spread() that fails keeps the reservations of what was not published",
        "        for _, reservation in reversed(reserved[len(sent) :]):\n            reservation.cancel()\n",
        "",
        "tests/celery/test_rate_tasks.py::TestSpread",
    ),
]
