"""Faults planted in a copy of the package, one at a time: ``python -m tests.mutants``. Each must turn a test red."""

from importlib import import_module
from pkgutil import iter_modules

from tests.mutants import rooms
from tests.mutants.fault import Fault

FAULTS: dict[str, list[Fault]] = {
    one.name: import_module(f"tests.mutants.rooms.{one.name}").FAULTS for one in iter_modules(rooms.__path__)
}
"""Room -> its faults."""
