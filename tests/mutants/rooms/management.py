"""Management commands: faults that must not pass."""

from tests.mutants.fault import Fault

FAULTS = [
    Fault(
        "management/base.py",
        "a store that is down is no error of its own",
        "raise CommandError(str(error), returncode=EXIT_UNAVAILABLE) from error",
        "raise CommandError(str(error)) from error",
        "tests/doors/test_command_locks.py -k down",
    ),
    Fault(
        "management/base.py",
        "what did nothing ends well",
        "        if not result:\n            raise CommandError(str(result))\n",
        "",
        "tests/doors/test_command_locks.py -k fences",
    ),
    Fault(
        "management/commands/locks.py",
        "another holder is released than the one that was shown",
        '"fingerprint": options["fingerprint"]}',
        '"fingerprint": None}',
        "tests/doors/test_command_locks.py -k only_the_holder",
    ),
    Fault(
        "management/commands/locks.py",
        "an empty name lists locks as if one was released",
        "        if release is not None:\n",
        "        if release:\n",
        "tests/doors/test_command_locks.py -k usage",
    ),
    Fault(
        "management/commands/sweep_locks.py",
        "a check changes something",
        'dry_run=options["dry_run"] or options["check"],',
        'dry_run=options["dry_run"],',
        "tests/doors/test_command_sweep_locks.py -k check",
    ),
    Fault(
        "management/commands/limits.py",
        "a reason is not written down",
        '{"by": self.actor(), "reason": options["reason"]}',
        '{"by": self.actor(), "reason": ""}',
        "tests/doors/test_command_limits.py -k acts",
    ),
]
