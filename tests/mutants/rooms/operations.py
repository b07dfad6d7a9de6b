"""What an operator may do, and the sweep: faults that must not pass."""

from tests.mutants.fault import Fault

FAULTS = [
    Fault(
        "operations/sweep/unclaimed.py",
        "a row in a claimed state without a claim is put back although nobody has asked for it",
        "        if not self.options.unclaimed:\n",
        "        if False:\n",
        "tests/operations/test_sweep.py",
    ),
    Fault(
        "operations/locks/release.py",
        "a lock is released although it has changed hands",
        "if record is None or fingerprint is None or fingerprint_of(record.token) == fingerprint:",
        "if True:",
        "tests/operations/test_operations_release.py -k new_holder",
    ),
    Fault(
        "operations/locks/release.py",
        "the lock is deleted before the row is fenced",
        "        revoked = row is not None and _revoke_claim(row, record, state)\n",
        "        get_backend().remove(record.name, record.token)\n"
        "        revoked = row is not None and _revoke_claim(row, record, state)\n",
        "tests/operations/test_operations_release.py::TestRaces",
    ),
    Fault(
        "operations/locks/release.py",
        "the row is not fenced",
        "        revoked = row is not None and _revoke_claim(row, record, state)\n",
        "        revoked = row is not None\n",
        "tests/operations/test_operations_release.py::TestGuarded",
    ),
    Fault(
        "operations/locks/release.py",
        "another tenant's row",
        "    if record.holder.row and (tenant := other_tenant(bare)):",
        "    if False and (tenant := other_tenant(bare)):",
        "tests/celery/test_tenants.py -k release",
    ),
    Fault(
        "operations/audit.py",
        "an act that was interrupted leaves no trace",
        "        if attempt.partial_outcome or not refused:",
        "        if attempt.partial_outcome:",
        "tests/operations/test_operations_release.py::TestAudit",
    ),
    Fault(
        "operations/sweep/locks.py",
        "a holder of whom nothing is known counts as dead",
        "holders.alive(holder) is False:",
        "not holders.alive(holder):",
        "tests/operations/test_sweep.py -k elsewhere",
    ),
    Fault(
        "operations/sweep/locks.py",
        "one look is enough",
        "                if record is None or current is None or not _is_unchanged(suspect, current):",
        "                if record is None or current is None:",
        "tests/operations/test_sweep_races.py -k renewed",
    ),
    Fault(
        "operations/sweep/rows.py",
        "a row whose lock has another name counts as abandoned",
        "            locked_rows |= keys.intersection(map(self.guards.resolve_guarded_row, page))",
        "            pass",
        "tests/operations/test_sweep.py -k speaks",
    ),
    Fault(
        "operations/sweep/rows.py",
        "a row that has changed since the first look is restored",
        "now.get(one.row.pk) == one.row]",
        "one.row.pk in now]",
        "tests/operations/test_sweep_races.py -k writes_to_it",
    ),
    Fault(
        "operations/sweep/restoring.py",
        "the task is published although the row has changed hands",
        "                    return RestoreResult(False)\n                message_id",
        "                    pass\n                message_id",
        "tests/operations/test_sweep_races.py -k is_not_published",
    ),
    Fault(
        "operations/sweep/restoring.py",
        "a row that the database keeps as it is stops the sweep of all others",
        "        except DatabaseError as error:",
        "        except NotImplementedError as error:",
        "tests/operations/test_sweep.py -k keeps_no_other",
    ),
]
