"""The key by which a call names its row: one spelling, of the primary key or of another unique field."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from django.db import models
from django.test.utils import isolate_apps
from django.utils.safestring import SafeString

from django_tasklock import Claim, StaleClaim, TaskLockError, current_claim, current_lock, model_lock
from django_tasklock.guards.keys import check_key
from django_tasklock.operations import Actor, RowRef, get_lock, list_locks, release_lock
from tests.support.guards import ONCE, held, new_token, no_guards
from tests.support.once_app import once_app
from tests.support.public import in_store
from tests.support.stores import stores
from tests.support.sweeping import swept, tally_of
from tests.testapp.models import Playlist, Reel, Sequel, Ticket, Track, Video

pytestmark = [pytest.mark.database, pytest.mark.django_db(transaction=True)]

UID = UUID("6f1c35a0-95a2-4d3f-8f0a-0b6c8c1c1d2e")


@pytest.fixture(params=stores("memory"), autouse=True)
def store(request: pytest.FixtureRequest, settings: Any) -> Any:
    """The store in force, empty; no guard is registered."""
    no_guards()
    yield from in_store(request.param, settings)


class Text(str):
    """A text of a class of its own."""

    __slots__ = ()


class TestSpelling:
    @pytest.mark.parametrize(
        ("model", "lookup", "value", "key"),
        [
            (Video, "pk", 7, 7),
            (Reel, "pk", UID, UID),
            (Reel, "pk", str(UID), UID),
            (Track, "uid", Text(UID), UID),
            (Track, "token", "7", "7"),
            (Track, "token", SafeString("a"), "a"),
        ],
    )
    def test_it_is_taken_in_the_type_of_its_field(self, model, lookup, value, key):
        found = check_key(model, lookup, value, "row")
        assert found == key
        assert isinstance(found, type(key))

    @pytest.mark.parametrize(
        ("model", "lookup", "value"),
        [
            *((Video, "pk", value) for value in ("7", "007", 7.0, True, None, "seven", [7], float("inf"))),
            *((Reel, "pk", value) for value in (UID.hex, str(UID).upper(), f"{{{UID}}}", 7, None)),
            *((Track, "token", value) for value in (7, None, UID, b"7")),
        ],
    )
    def test_another_is_refused_by_argument_model_field_and_value(self, model, lookup, value):
        with pytest.raises(TaskLockError) as refused:
            check_key(model, lookup, value, "track")
        field = model._meta.pk.name if lookup == "pk" else lookup
        assert f"track={value!r} is no key of {model._meta.label}, by its field {field!r}" in str(refused.value)

    @isolate_apps("tests.testapp")
    def test_the_text_that_json_has_for_it(self):
        class Coin(models.Model):
            day = models.DateField(unique=True)
            worth = models.DecimalField(unique=True, max_digits=9, decimal_places=2)
            owner = models.OneToOneField(Ticket, models.CASCADE)

            class Meta:
                app_label = "testapp"

        assert check_key(Coin, "day", "2026-01-31", "day") == date(2026, 1, 31)
        assert check_key(Coin, "worth", "1.50", "worth") == Decimal("1.50")
        assert check_key(Coin, "owner", 7, "owner") == 7
        for lookup, value in (("day", "2026-1-31"), ("worth", "1.5e0"), ("owner", "7")):
            with pytest.raises(TaskLockError, match=f"by its field '{lookup}'"):
                check_key(Coin, lookup, value, "coin")

    def test_a_claim_that_is_taken_by_hand_is_judged_alike(self):
        track = Track.objects.create(token="a")
        with pytest.raises(TaskLockError, match="'7' is no key of testapp.Track, by its field 'id'"):
            Claim.take(Track, "7", ONCE, new_token())
        assert Claim.take(Track, "a", ONCE, new_token(), lookup="token").pk == track.pk

    @pytest.mark.parametrize(
        ("model", "lookup", "why"),
        [
            (Track, "title", "testapp.Track.title is not unique"),
            (Track, "name", "testapp.Track has no such field"),
            (Sequel, "id", "no column of its own table"),
        ],
    )
    def test_a_lookup_that_may_name_several_rows_is_refused_where_it_is_written(self, model, lookup, why):
        def work(key):
            """Never runs."""

        with pytest.raises(TaskLockError, match=f"lookup='{lookup}': .*{why}"):
            model_lock(model, guard=ONCE, lookup=lookup)(work)
        with once_app() as app, pytest.raises(TaskLockError, match=f"lookup='{lookup}': .*{why}"):
            app.task(work, model=model, guard=ONCE, lookup=lookup)


def test_a_spelling_that_only_a_collation_takes_for_the_key_claims_no_row() -> None:
    """It would be another lock of the same row."""
    playlist = Playlist.objects.create(slug="Mix")

    @model_lock(Playlist, guard=ONCE, lookup="slug", on_conflict="raise")
    def work(slug: str) -> str:
        return "done"

    with pytest.raises(TaskLockError, match="'mix' is not how|there is no testapp.Playlist 'mix'"):
        work("mix")
    playlist.refresh_from_db()
    assert (playlist.status, playlist.lock_token, playlist.lock_epoch) == ("uploading", "", 0)
    assert work("Mix") == "done"


def test_a_time_of_another_zone_claims_no_row() -> None:
    """As text it has another name, and so another lock."""
    hour = datetime(2026, 1, 31, 10, tzinfo=UTC)
    Playlist.objects.create(made_at=hour)

    @model_lock(Playlist, guard=ONCE, lookup="made_at")
    def work(at: datetime | str) -> str:
        return "done"

    for at in (hour.astimezone(timezone(timedelta(hours=2))), "2026-01-31T12:00:00+02:00"):
        with pytest.raises(TaskLockError, match="pass the value that the row has in it"):
            work(at)
    assert work("2026-01-31T10:00:00+00:00") == "done"


def test_the_row_of_a_token_is_worked_on_and_not_the_one_whose_number_it_looks_like() -> None:
    Track.objects.create(pk=7)
    Track.objects.create(pk=8, token="7")

    @model_lock(Track, guard=ONCE, lookup="token")
    def by_token(token: str) -> tuple[str, int]:
        current_claim().update(token="8", title="x")  # even of a row whose key changes meanwhile
        return current_lock().name, current_claim().pk

    @model_lock(Track, guard=ONCE)
    def by_number(number: int) -> None:
        """Never runs."""

    with pytest.raises(TaskLockError, match="number='7' is no key of testapp.Track, by its field 'id'"):
        by_number("7")  # type: ignore[arg-type]
    assert by_token("7") == ("testapp.track:7", 8)
    assert [*Track.objects.order_by("pk").values_list("pk", "status", "title")] == [
        (7, "uploading", "untitled"),
        (8, "ready", "x"),
    ]
    assert by_token("7")["state"] is None  # type: ignore[call-overload]  # there is none any more


def test_operators_find_the_row_of_a_key_that_validators_would_refuse() -> None:
    """``save()`` does not ask them."""
    playlist = Playlist.objects.create(slug="été 24")

    @model_lock(Playlist, guard=ONCE, lookup="slug")
    def work(slug: str) -> None:
        assert release_lock(current_lock().name, by=Actor("me")).fenced

    with pytest.raises(StaleClaim):
        work(playlist.slug)
    playlist.refresh_from_db()
    assert (playlist.status, playlist.lock_epoch) == ("uploading", 2)


def test_operators_and_the_sweep_find_the_row_of_a_lock_by_its_key() -> None:
    track = Track.objects.create()
    seen: list[Any] = []

    @model_lock(Track, guard=ONCE, lookup="uid")
    def work(uid: UUID) -> None:
        seen.extend(list_locks().locks)
        assert tally_of(swept(models=[Track])) == {}  # it is not abandoned: it has a lock
        seen.append(get_lock(current_lock().name).row)
        seen.append(release_lock(current_lock().name, by=Actor("me"), row_state="failed"))

    with pytest.raises(TaskLockError):
        work(track.uid)
    lock, row, released = seen
    assert lock.row == row.ref == RowRef("testapp.track", str(track.uid), "uid")
    assert str(lock.row) == f"testapp.track.uid:{track.uid}"
    assert (row.exists, row.state, row.epoch, row.agrees) == (True, "processing", 1, True)
    assert released.fenced
    track.refresh_from_db()
    assert (track.status, track.lock_epoch) == ("failed", 2)
    assert not held(f"testapp.track:{track.uid}")
