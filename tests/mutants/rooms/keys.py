"""API keys: faults that must not pass."""

from tests.mutants.fault import Fault

FAULTS = [
    Fault(
        "api_keys.py",
        "secrets are compared as texts, in no constant time",
        "if hmac.compare_digest(key.digest, digest) and found is None:",
        "if key.digest == digest and found is None:",
        "tests/doors/test_rest_access.py::TestKeys",
    ),
    Fault(
        "api_keys.py",
        "a key that reads may act",
        '"all" in said["may"]',
        "True",
        "tests/doors/test_rest_access.py::TestEachEndPoint",
    ),
    Fault(
        "authentication.py",
        "a key in the query string without being allowed to be there",
        "    if in_query and IN_QUERY in request.GET:",
        "    if IN_QUERY in request.GET:",
        "tests/doors/test_rest_access.py::TestKeys",
    ),
    Fault(
        "authentication.py",
        "wrong keys are not counted",
        "    if number <= WRONG_KEYS:",
        "    if number <= 10**9:",
        "tests/doors/test_rest_access.py::TestWrongKeys",
    ),
    Fault(
        "authentication.py",
        "whoever guesses keys says which address he has",
        "return str(hops[-min(proxies, len(hops))]).strip()",
        "return str(hops[0]).strip()",
        "tests/doors/test_rest_access.py::TestWrongKeys",
    ),
    Fault(
        "authentication.py",
        "metrics are open while there are no keys",
        'status, code, detail = 403, "permission_denied", "TASKLOCK[\'API_KEYS\'] has no keys: this is closed."',
        "return None",
        "tests/doors/test_metrics.py::TestView",
    ),
]
