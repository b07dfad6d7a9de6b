"""Claims and guarded rows: faults that must not pass."""

from tests.mutants.fault import Fault

FAULTS = [
    Fault(
        "guards/claim.py",
        "a write that does not ask for the token and the epoch",
        "            return rows.filter(**token, **{EPOCH: self.epoch})",
        "            return rows",
        "tests/guards/test_stale_writer.py::test_a_stopped_holder_is_refused_when_its_successor_has_come_and_gone",
    ),
    Fault(
        "guards/claim.py",
        "the epoch is not compared",
        "            return rows.filter(**token, **{EPOCH: self.epoch})",
        "            return rows.filter(**token)",
        "tests/guards/test_guards.py::TestOvertaken",
    ),
    Fault(
        "guards/guard.py",
        "a claim does not raise the epoch",
        "            values |= {TOKEN: token, EPOCH: F(EPOCH) + 1}",
        "            values |= {TOKEN: token, EPOCH: F(EPOCH)}",
        "tests/guards/test_guards.py::TestClaiming",
    ),
    Fault(
        "guards/guard.py",
        "the exclusion is not part of the claiming UPDATE",
        "        return where & ~self.exclude if self.exclude is not None else where",
        "        return where",
        "tests/guards/test_guards.py::TestClaiming",
    ),
    Fault(
        "guards/claim.py",
        "a fenced transaction that does not lock its row",
        "            row = locked(self.rows()).first()",
        "            row = self.rows().first()",
        "tests/guards/test_claim_databases.py::TestTwoConnections",
    ),
    Fault(
        "guards/claim.py",
        "an answer to the claim that was lost counts as a refusal",
        "        if found is not None and not claimed and again and self._sent:",
        "        if False:",
        "tests/guards/test_claim_databases.py::TestLostAnswers",
    ),
    Fault(
        "guards/claim.py",
        "a time limit at the commit leaves the row claimed",
        "            if self._sent:  # it may be committed",
        "            if False:  # it may be committed",
        "tests/guards/test_claim_databases.py::TestLostAnswers",
    ),
    Fault(
        "guards/claim.py",
        "what a successor wrote counts as one's own, whose answer was lost",
        "**({EPOCH: self.epoch} if self.has_columns else {})).exists()",
        "**{}).exists()",
        "tests/guards/test_claim_databases.py::TestLostAnswers",
    ),
    Fault(
        "guards/claim.py",
        "a deletion of another row explains that this one is not found",
        "        if using == self.using and instance.pk == self.pk:",
        "        if using == self.using:",
        "tests/guards/test_unseen_rows.py",
    ),
    Fault(
        "guards/writes.py",
        "a parent's table is written although the row was not",
        "        if written and above:",
        "        if above:",
        "tests/guards/test_claim_tables.py",
    ),
    Fault(
        "guards/writes.py",
        "the signal is sent before the commit",
        "        transaction.on_commit(self._send, using=using, robust=True)",
        "        self._send()",
        "tests/guards/test_writes.py::TestSignal",
    ),
    Fault(
        "guards/keys.py",
        "a key in another spelling is converted",
        '    raise TaskLockError(f"{where}: that would be',
        '    return key\n    raise TaskLockError(f"{where}: that would be',
        "tests/guards/test_keys.py",
    ),
    Fault(
        "columns.py",
        "save() writes the columns as the instance has read them",
        "        if not add:\n            return F(self.attname)",
        "        if not add:\n            return getattr(model_instance, self.attname)",
        "tests/guards/test_guards.py::TestSave",
    ),
    Fault(
        "columns.py",
        "an upsert sets the columns back",
        "[field for field in upsert.update_fields if not isinstance(field, _Claimed)]",
        "list(upsert.update_fields)",
        "tests/guards/test_guarded_columns.py::TestBulkWrites",
    ),
]
