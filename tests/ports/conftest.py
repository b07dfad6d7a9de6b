"""Celery for the ported programs, without a worker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.once_app import OnceApp, once_app


@pytest.fixture
def app() -> Iterator[OnceApp]:
    """Celery's current app: its messages wait in this process until ``app.run()`` runs one as a worker does."""
    with once_app() as made:
        made.app.set_current()
        made.app.set_default()  # in other threads, too
        yield made
