"""The test kit: faults that must not pass, or a user's tests prove nothing."""

from tests.mutants.fault import Fault

FAULTS = [
    Fault(
        "testing/loss.py",
        "a simulated take-over leaves the row to the body",
        "    claim.rows().update(**{TOKEN: secrets.token_hex(16), EPOCH: F(EPOCH) + 1})\n",
        "",
        "tests/project/test_testing.py",
    ),
    Fault(
        "testing/loss.py",
        "a killed holder closes its row",
        "        claim.taken = False  # so",
        "        pass  # so",
        "tests/project/test_testing.py",
    ),
    Fault(
        "testing/loss.py",
        "a killed holder is renewed",
        "    heartbeat.forget(lease)\n",
        "",
        "tests/project/test_testing.py",
    ),
    Fault(
        "testing/loss.py",
        "a lost lock stays busy for others",
        "        lease.backend.release(lease.name, lease.token)\n    if first:",
        "        pass\n    if first:",
        "tests/project/test_testing.py",
    ),
    Fault(
        "testing/process.py",
        "locks of the plain functions are remembered in the next test",
        '    "django_tasklock.locks.functions",\n',
        "",
        "tests/project/test_testing.py",
    ),
    Fault(
        "testing/stores.py",
        "a store that was down stays so in the next test",
        "    finally:\n        memory.shut(False)",
        "    finally:\n        pass",
        "tests/project/test_testing.py::TestStoreDown",
    ),
    Fault(
        "testing/process.py",
        "the memory store has what the last test left",
        "    forget()\n    memory.reset()",
        "    forget()",
        "tests/project/test_testing.py",
    ),
    Fault(
        "pytest_plugin.py",
        "a test that asks for the fixture uses the store of the settings",
        '        store = "memory"\n',
        '        store = "settings"\n',
        "tests/project/test_pytest_plugin.py::test_the_fixture_and_the_marker",
    ),
]
