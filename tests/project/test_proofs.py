"""What proves this package outside of its tests can run: planted faults have their places, benchmarks are imported."""

from __future__ import annotations

import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest

import benchmarks
import django_tasklock
from tests.mutants import FAULTS, Fault

PACKAGE = Path(django_tasklock.__file__).parent
ROOT = Path(__file__).parents[2]
BENCHMARKS = sorted(path.stem for path in Path(benchmarks.__file__).parent.glob("*.py"))


@pytest.mark.parametrize("fault", [pytest.param(one, id=one.what) for faults in FAULTS.values() for one in faults])
def test_a_fault_has_its_place_and_its_tests(fault: Fault) -> None:
    text = (PACKAGE / fault.file).read_text("utf-8")
    assert fault.planted(text) != text
    for word in shlex.split(fault.tests):
        if word.startswith("tests"):
            file, *names = word.split("[")[0].split("::")
            assert (ROOT / file).exists(), word
            for name in names:
                assert re.search(rf"(class|def) {name}\b", (ROOT / file).read_text("utf-8")), word


def test_each_bug_that_others_had_has_a_test() -> None:
    numbers = set(re.findall(r"^\| (\d+) \|", (ROOT / "tests" / "bugs.md").read_text("utf-8"), re.MULTILINE))
    named = {
        number for file in ROOT.glob("tests/**/*.py") for number in re.findall(r"\b8\.(\d+)\b", file.read_text("utf-8"))
    }
    assert numbers - named == set()


@pytest.mark.parametrize("name", [name for name in BENCHMARKS if name != "__main__" and not name.endswith("_app")])
def test_a_benchmark_can_be_imported(name: str) -> None:
    """It imports what it measures by its names; apps set Django up for workers of their own."""
    import_module(f"benchmarks.{name}")
