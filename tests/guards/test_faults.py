"""A short slice of ``make faults``: whatever fails, a guarded row is done once, and by its rightful holder."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.faults import site


@pytest.mark.slow
@pytest.mark.redis
@pytest.mark.parametrize("seed", [1, 2])
def test_a_few_seconds_of_faults(seed: int) -> None:
    environment = {name: value for name, value in os.environ.items() if name != site.DATABASE}
    command = [sys.executable, "-m", "tests.faults", "--only", "django_tasklock", "--seconds", "5", "--seed", str(seed)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stdout + run.stderr
