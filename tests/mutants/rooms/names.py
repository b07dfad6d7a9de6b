"""Names of locks: faults that must not pass."""

from tests.mutants.fault import Fault

FAULTS = [
    Fault(
        "names.py",
        "a coroutine asks for its tenant in its own thread, whose connections are others",
        "_present.set(await sync_to_async(get_settings().tenant)())",
        "_present.set(str(get_settings().tenant_function()))",
        "tests/celery/test_tenants.py",
    ),
    Fault(
        "names.py",
        "the separators are not escaped: two calls make one name",
        '            self._escapes = {ord(char): _escape(char) for char in "".join(between) + "%"}',
        "            self._escapes = {}",
        "tests/project/test_names.py",
    ),
    Fault(
        "names.py",
        "the escape itself is not escaped",
        '"".join(between) + "%"}',
        '"".join(between)}',
        "tests/project/test_names.py",
    ),
    Fault(
        "names.py",
        "with and without the prefix are two locks",
        "        name = name.removeprefix(prefix).removeprefix(tag)",
        "        break",
        "tests/project/test_names.py",
    ),
    Fault(
        "names.py",
        "an object's address makes a name that nobody else makes",
        "says_address(text := format(converted)):",
        "not (text := format(converted)):",
        "tests/project/test_names.py",
    ),
    Fault(
        "names.py",
        "a set makes a name, in the order of one process",
        "        if isinstance(value, set | frozenset):",
        "        if False:",
        "tests/project/test_names.py",
    ),
    Fault(
        "names.py",
        "a name may be of any length",
        "    if len(bare) > MAX_LENGTH:",
        "    if False:",
        "tests/project/test_names.py",
    ),
    Fault(
        "names.py",
        "defaults are left out of a name that says them",
        "        bound.apply_defaults()\n",
        "",
        "tests/project/test_names.py",
    ),
]
