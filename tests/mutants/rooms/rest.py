"""REST: faults that must not pass."""

from tests.mutants.fault import Fault

FAULTS = [
    Fault(
        "rest/access.py",
        "one permission of several is enough",
        "return all(user.has_perm(one) for one in view.point.permissions)",
        "return any(user.has_perm(one) for one in view.point.permissions)",
        "tests/doors/test_rest_access.py::TestEachEndPoint",
    ),
    Fault(
        "rest/access.py",
        "every key may everything",
        "return perm in (ALL if self.key.acts else READ)",
        "return perm in ALL",
        "tests/doors/test_rest_access.py::TestEachEndPoint",
    ),
    Fault(
        "rest/view.py",
        "a view inside of the project's transaction",
        "outside_transactions(super().as_view(**initkwargs))",
        "super().as_view(**initkwargs)",
        "tests/doors/test_rest.py::TestRelease",
    ),
    Fault(
        "rest/view.py",
        "an unknown field is ignored",
        "            _refuse_unknown_fields(data, self.point.fields)",
        "            pass",
        "tests/doors/test_rest.py::TestRelease",
    ),
    Fault(
        "rest/view.py",
        "If-Match is not looked at",
        '            acting["fingerprint"] = _expected_fingerprint(request)',
        "            pass",
        "tests/doors/test_rest.py::TestRelease",
    ),
    Fault(
        "rest/problems.py",
        "an outage is told with the address of the store",
        '    return Problem(503, "store_unavailable", text)',
        '    return Problem(503, "store_unavailable", str(error))',
        "tests/doors/test_rest_operators.py -k down",
    ),
]
