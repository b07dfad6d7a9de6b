"""System checks: faults that must not pass."""

from tests.mutants.fault import Fault

FAULTS = [
    Fault(
        "checks/settings.py",
        "two tenants with one prefix are no error",
        "        if apps.is_installed(app)\n",
        "        if False\n",
        "tests/doors/test_checks.py::TestSettings",
    ),
    Fault(
        "checks/settings.py",
        "a secret in the place of a name is printed",
        'return repr(name) if len(name) < SHORTEST_KEY else "..."',
        "return repr(name)",
        "tests/doors/test_checks.py::TestSettings",
    ),
    Fault(
        "checks/store.py",
        "a cache that cannot lock is accepted",
        "        if found is not None:\n            level, text = found\n",
        "        if False:\n            level, text = found\n",
        "tests/doors/test_checks.py::TestBackend",
    ),
    Fault(
        "checks/store.py",
        "locks beside a cache that is cleared",
        "any(database.same(other) for other in databases_of(alias))",
        "any(database is other for other in databases_of(alias))",
        "tests/doors/test_checks_shared.py",
    ),
    Fault(
        "checks/deploy.py",
        "a Redis that drops locks is accepted",
        '    if policy not in (None, "", SAFE_POLICY):',
        '    if policy not in (None, "", SAFE_POLICY, "allkeys-lru"):',
        "tests/doors/test_checks_deploy.py::TestRedis",
    ),
    Fault(
        "checks/deploy.py",
        "rights that are missing are taken for an outage",
        "    if not (error.down or is_local_fault(error)):",
        "    if False:",
        "tests/doors/test_checks_deploy.py::TestRedis",
    ),
    Fault(
        "checks/guards.py",
        "a guard that the database cannot judge is accepted",
        "        reasons = unfit(model, guard)\n",
        "        reasons = []\n",
        "tests/doors/test_checks.py::TestGuards",
    ),
    Fault(
        "checks/tasks.py",
        "a task that is lost with its process is accepted",
        "and not (task.acks_late and task.reject_on_worker_lost)",
        "and not (task.acks_late or task.reject_on_worker_lost)",
        "tests/doors/test_message_leases.py::TestLateAcknowledgement",
    ),
]
