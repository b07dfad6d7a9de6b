"""Each planted fault has its place in the package, and its tests: ``python -m tests.mutants`` runs them."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

import django_tasklock
from tests.mutants import FAULTS, Fault

PACKAGE = Path(django_tasklock.__file__).parent
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("fault", [pytest.param(one, id=one.what) for faults in FAULTS.values() for one in faults])
def test_it_has_its_place_and_its_tests(fault: Fault) -> None:
    text = (PACKAGE / fault.file).read_text("utf-8")
    assert fault.planted(text) != text
    for word in shlex.split(fault.tests):
        if word.startswith("tests"):
            assert (ROOT / word.partition("::")[0]).exists(), word
