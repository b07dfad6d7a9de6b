"""Decorated calls: faults that must not pass."""

from tests.mutants.fault import Fault

FAULTS = [
    Fault(
        "decorators/call.py",
        "a body that was stopped from outside fails its row",
        "            elif self.caller.stopped(error):",
        "            elif False:",
        "tests/decorators/test_model_lock.py::TestEndings",
    ),
    Fault(
        "decorators/call.py",
        "a failed body leaves its row done",
        "            self._close_failed(self.claim, error)",
        "            self.claim.finish()",
        "tests/decorators/test_model_lock.py::TestEndings",
    ),
    Fault(
        "decorators/call.py",
        "a body that has ended its row itself leaves it done",
        "            self.claim.finish(overwrite=False)",
        "            self.claim.finish()",
        "tests/decorators/test_model_lock.py::TestEndings",
    ),
    Fault(
        "decorators/call.py",
        "a stale claim of another row leaves this one claimed",
        "isinstance(error, StaleClaim) and error.name == claim.name:",
        "isinstance(error, StaleClaim):",
        "tests/decorators/test_model_lock.py::TestEndings",
    ),
    Fault(
        "decorators/call.py",
        "a forked child closes the row of its parent",
        "        return self.claim.taken and self._process == os.getpid()",
        "        return self.claim.taken",
        "tests/decorators/test_model_lock.py::TestEndings",
    ),
    Fault(
        "decorators/call.py",
        "a call that lost its lock before its body fails its row",
        " or (isinstance(error, LockLost) and not self.caller.call.begun)",
        "",
        "tests/decorators/test_before_the_body.py",
    ),
    Fault(
        "decorators/call.py",
        "a body that lost its lock while it ran leaves its row claimable",
        " or (isinstance(error, LockLost) and not self.caller.call.begun)",
        " or isinstance(error, LockLost)",
        "tests/decorators/test_model_lock.py::TestEndings",
    ),
    Fault(
        "decorators/call.py",
        "a body begins whose lock was lost before it",
        "                    ensure_enclosing_held()  # the call",
        "                    # the call",
        "tests/decorators/test_before_the_body.py",
    ),
    Fault(
        "decorators/call.py",
        "a nested call hides the claim of the outer one",
        "        current.set(self._before)",
        "        current.set(None)",
        "tests/decorators/test_model_lock.py::TestEndings",
    ),
    Fault(
        "decorators/call.py",
        "a cancelled coroutine leaves its closing write behind",
        "            await run_to_end(self._close, error)",
        "            self._close(error)",
        "tests/decorators/test_model_lock.py::TestCoroutinesWithARow",
    ),
    Fault(
        "decorators/wrapping.py",
        "a response that streams is a result, and is sent without the lock",
        '    if getattr(result, "streaming", False) is True:',
        "    if False:",
        "tests/decorators/test_decorators.py::TestWhatIsRefused",
    ),
    Fault(
        "decorators/wrapping.py",
        "a task that is not done is a result, and runs on without the lock",
        "    if not isinstance(result, FUTURES) or result.done():",
        "    if True:",
        "tests/decorators/test_decorators.py::TestWhatIsRefused",
    ),
]
