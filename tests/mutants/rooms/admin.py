"""Admin pages: faults that must not pass."""

from tests.mutants.fault import Fault

FAULTS = [
    Fault(
        "templatetags/tasklock.py",
        "a name is shown as HTML",
        'return mark_safe(_BREAK_POINTS.sub(r"\\1<wbr>", escape(text)))',
        'return mark_safe(_BREAK_POINTS.sub(r"\\1<wbr>", str(text)))',
        "tests/doors -k admin",
    ),
]
