"""A message whose caller has chosen to be parked behind a task that does not park: its holder promotes it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from django_tasklock.models import ParkedMessage
from tests.support.guards import elsewhere
from tests.support.once_app import OnceApp, once_app

pytestmark = [pytest.mark.django_db(transaction=True)]


@pytest.fixture
def app() -> Iterator[OnceApp]:
    with once_app() as made:
        yield made


@pytest.mark.parametrize("late", [False, True], ids=["early", "late"])
def test_the_release_promotes_it(app: OnceApp, late: bool) -> None:
    ended = []

    def body(number: int) -> str:
        if number == 1:
            task.once(on_conflict="queue").delay(2)
            ended.append(elsewhere(app.run)[0])
            assert ParkedMessage.objects.count() == 1
        return f"ran {number}"

    task = app.task(body, key="a", acks_late=late)
    task.delay(1)
    assert app.run() == ("SUCCESS", "ran 1")
    assert ended == ["IGNORED"]
    assert app.run() == ("SUCCESS", "ran 2")
    assert not ParkedMessage.objects.exists()
