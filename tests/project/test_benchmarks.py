"""The benchmarks, which import what they measure by its names."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

import benchmarks

MODULES = sorted(path.stem for path in Path(benchmarks.__file__).parent.glob("*.py"))
APPS = {name for name in MODULES if name.endswith("_app")}
"""Those set Django up for workers of their own; what they measure are public names."""


@pytest.mark.parametrize("name", sorted({*MODULES} - APPS - {"__main__"}))
def test_it_can_be_imported(name: str) -> None:
    import_module(f"benchmarks.{name}")
