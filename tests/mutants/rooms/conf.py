"""Settings and durations: faults that must not pass."""

from tests.mutants.fault import Fault

FAULTS = [
    Fault(
        "conf.py",
        "zero and less are durations",
        "    if not seconds >= 0.001:",
        "    if seconds != seconds:",
        "tests/project/test_conf.py",
    ),
    Fault(
        "conf.py",
        "True is a second",
        "    if isinstance(seconds, bool) or not isinstance(seconds, int | float):",
        "    if not isinstance(seconds, int | float):",
        "tests/project/test_conf.py",
    ),
    Fault(
        "conf.py",
        "a changed setting is not read again",
        '    if setting == "TASKLOCK":',
        '    if setting == "tasklock":',
        "tests/project/test_conf.py",
    ),
    Fault(
        "conf.py",
        "a message has the password of a URL",
        "without_password(repr(value))",
        "repr(value)",
        "tests/project/test_conf.py",
    ),
    Fault(
        "conf.py",
        "settings show the password of a URL",
        'LOCATION: str | Sequence[str] = field(default="default", repr=False)',
        'LOCATION: str | Sequence[str] = "default"',
        "tests/project/test_conf.py",
    ),
    Fault(
        "conf.py",
        "one server has two votes",
        "    if len(set(locations)) < len(locations):",
        "    if False:",
        "tests/project/test_conf.py",
    ),
    Fault(
        "conf.py",
        "the default lease outlives a shorter timeout",
        '        return hold, min(hold, milliseconds(self.LEASE, "LEASE"))',
        '        return hold, milliseconds(self.LEASE, "LEASE")',
        "tests/project/test_conf.py",
    ),
]
