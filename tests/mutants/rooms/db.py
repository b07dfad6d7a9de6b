"""Connections and transactions of Django's databases: faults that must not pass."""

from tests.mutants.fault import Fault

FAULTS = [
    Fault(
        "db/reconnect.py",
        "a write that may have been executed is sent again",
        "            if diagnosis.doubt and not again:",
        "            if False:",
        "tests/db/test_dropped.py::TestWhatMayNotBeSentTwice",
    ),
    Fault(
        "db/reconnect.py",
        "what reads columns counts as repeatable",
        "    return type(value) in (Value, Now)",
        "    return True",
        "tests/db/test_dropped.py::TestWhatMayNotBeSentTwice",
    ),
    Fault(
        "db/reconnect.py",
        "a statement is retried in the caller's transaction, which has lost the others",
        "    if in_callers_transaction(connection) if within is None else within:",
        "    if False:",
        "tests/guards/test_claim_databases.py::TestHangUps",
    ),
    Fault(
        "db/reconnect.py",
        "the closing write is not waited for",
        "            ends = ends or now + patience",
        "            ends = ends or now",
        "tests/db/test_dropped.py::TestTwoHours",
    ),
    Fault(
        "db/reconnect.py",
        "a closing write gives up as soon as a claim does, whose row another transaction has locked",
        "            patient = patience > 0 and (now < ends or attempts < LEAST_ATTEMPTS)",
        "            patient = False",
        "tests/guards/test_row_locks.py::TestTheEnd",
    ),
    Fault(
        "db/reconnect.py",
        "a transaction that a time limit has struck stays open",
        "    lost = not connection.autocommit\n",
        "    return False\n    lost = not connection.autocommit\n",
        "tests/guards/test_claim_databases.py::TestLostAnswers",
    ),
    Fault(
        "db/transactions.py",
        "a claim joins a transaction of its caller",
        "transaction.atomic(using=using, durable=True)",
        "transaction.atomic(using=using)",
        "tests/guards/test_claim_databases.py::TestTransactions",
    ),
    Fault(
        "db/connections.py",
        "a connection is closed in the middle of the caller's transaction",
        "            or in_callers_transaction(connection)\n",
        "",
        "tests/db/test_connections.py::TestReleaseConnections",
    ),
    Fault(
        "db/connections.py",
        "a body closes the connection that another reads from",
        "            peers[0].opened.update(self.opened)\n            return",
        "            peers[0].opened.update(self.opened)",
        "tests/db/test_connections.py::TestBodies tests/db/test_connections.py::TestCoroutines",
    ),
    Fault(
        "db/forks.py",
        "a child closes the connection of a thread of its parent",
        '    _inherited.append(getattr(_local, "opened", None))',
        "    _local.opened = None",
        "tests/db/test_forks.py",
    ),
    Fault(
        "db/forks.py",
        "a fork does not wait for work with SQLite",
        "        thread != here and time.monotonic() - began < (SQLITE_MAX_WAIT if sqlite else MAX_WAIT)",
        "        False",
        "tests/db/test_forks.py",
    ),
]
