"""The queue of parked messages: faults that must not pass."""

from tests.mutants.fault import Fault

FAULTS = [
    Fault(
        "celery/delivery/line.py",
        "the lock is not looked at after a message was parked",
        "        if not self._flag_holder():\n            self.promote_next()\n",
        "        self._flag_holder()\n",
        "tests/celery/test_parking.py::TestInBetween",
    ),
    Fault(
        "celery/queue/promoter.py",
        "a message that waits overtakes one that was published before it",
        '    if row.mode == "queue" and _awaits_another(row, due.name):',
        "    if False:",
        "tests/celery/test_parking.py::TestInBetween",
    ),
    Fault(
        "celery/queue/rows.py",
        "a row is moved whatever has become of it since it was read",
        "filter(id=row.id, state=row.state, sent=row.sent, changed_at=row.changed_at)",
        "filter(id=row.id)",
        "tests/celery/test_parking.py::TestTable",
    ),
    Fault(
        "celery/queue/rows.py",
        "of the messages that coalesce the oldest is promoted",
        'newest = read(parked.filter(mode="coalesce").order_by("-number", "-id")[:1])',
        'newest = read(parked.filter(mode="coalesce").order_by("number", "id")[:1])',
        "tests/celery/test_parking.py::TestTable",
    ),
    Fault(
        "celery/queue/rows.py",
        "one more than queue_limit is parked",
        "if len(taken) < limit and free else None",
        "if free else None",
        "tests/celery/test_parking.py::TestLimit",
    ),
    Fault(
        "celery/delivery/line.py",
        "the row of a message that starts stays in the table",
        "        if self.message.delivered_before and not (self._row and rows.remove_unchanged(self._row)):\n",
        "        if self.message.delivered_before and not self._row:\n",
        "tests/celery/test_parking.py::TestInBetween",
    ),
    Fault(
        "celery/delivery/line.py",
        "a release promotes nobody",
        "        if not self._is_alone:\n            self.promote_next()",
        "        pass",
        "tests/celery/test_parking.py::TestInBetween",
    ),
    Fault(
        "celery/delivery/line.py",
        "an older message that arrives late runs after a newer one",
        "rows.has_newer(self.name, self.number)) or self._is_outdated():",
        "rows.has_newer(self.name, self.number)):",
        "tests/celery/test_parking.py::TestNewest",
    ),
    Fault(
        "celery/queue/promoter.py",
        "attempts to bring a message to a worker are not counted",
        'sent=row.sent + 1, attempts=row.attempts + 1, problem="")',
        'sent=row.sent + 1, problem="")',
        "tests/celery/test_parked_dead.py",
    ),
    Fault(
        "celery/queue/promoter.py",
        "a message that is on its way is put back at once",
        "    return row.now - row.changed_at > patience * 1000",
        "    return row.now - row.changed_at > 0",
        "tests/celery/test_parking.py::TestSomebodyDies",
    ),
    Fault(
        "celery/queue/promoter.py",
        "the message behind one that is on its way is promoted",
        "    if any(row.mode != REPLACED and row not in late for row in moving):\n        return None\n",
        "",
        "tests/celery/test_parking.py::TestInBetween",
    ),
    Fault(
        "celery/queue/ending.py",
        "a dead message stays unique",
        ' is dead: %s", row.task, row.task_id, reason)\n        _leave(row, app)',
        ' is dead: %s", row.task, row.task_id, reason)',
        "tests/celery/test_parked_dead.py",
    ),
    Fault(
        "celery/queue/envelope.py",
        "the signature of a row is not looked at",
        "        return json_object(Signer(salt=SALT).unsign(text))",
        '        return json_object(text.rpartition(":")[0])',
        "tests/celery/test_parked_dead.py",
    ),
    Fault(
        "celery/queue/ending.py",
        "a message that is signed may be copied to another row",
        '    if key_of(name) != row.key or signature.options.get("task_id") != row.task_id:',
        "    if False:",
        "tests/celery/test_parked_dead.py",
    ),
]
