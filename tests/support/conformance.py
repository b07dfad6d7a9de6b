"""One of our own stores as the store under test of a public contract."""

from __future__ import annotations

import pytest

from django_tasklock.backends.contract.stores import LockStore
from tests.support.permits import clear_permits
from tests.support.stores import be_patient, clear, make

__all__ = ["Named"]


class Named:
    """A store by its short name, which is the parameter of each test."""

    store: str

    @pytest.fixture(autouse=True)
    def name(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store = request.param
        be_patient(monkeypatch)

    def make(self) -> LockStore:
        return make(self.store)

    def clear(self) -> None:
        clear(self.store)
        if self.store == "database":
            from django_tasklock.models import RateRow

            clear_permits(self.store)
            RateRow.objects.all().delete()
