"""One of our own stores as the store under test of a public contract."""

from __future__ import annotations

import pytest

from django_tasklock.backends.contract.stores import LockStore
from tests.support import quorum
from tests.support.permits import clear_permits
from tests.support.stores import clear, make

__all__ = ["Named"]


class Named:
    """A store by its short name, which is the parameter of each test."""

    store: str

    @pytest.fixture(autouse=True)
    def name(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store = request.param
        quorum.be_patient(monkeypatch)
        for module in ("store", "waiter"):  # as in Redis: a machine that stalls for a second is not a dead waiter
            monkeypatch.setattr(f"django_tasklock.backends.memory.{module}.HANDOVER_TTL", 3000)

    def make(self) -> LockStore:
        return make(self.store)

    def clear(self) -> None:
        clear(self.store)
        if self.store == "database":
            from django_tasklock.models import RateRow

            clear_permits(self.store)
            RateRow.objects.all().delete()
