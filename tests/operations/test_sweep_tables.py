"""Several guards of one table: the sweep and the operators judge a row by the one that claimed it."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from django_tasklock import Claim, StaleClaim, StateGuard, TaskLockError, model_lock
from django_tasklock.operations import Actor, get_lock, release_lock
from tests.support.guards import new_token, no_guards
from tests.support.public import in_store
from tests.support.stores import stores
from tests.support.sweeping import guarded_function, swept, tally_of
from tests.testapp.models import Import, PlainImport, PlainVideo, Reel, Video

pytestmark = pytest.mark.django_db(transaction=True)

BY = Actor("somebody")
IMPORTS = StateGuard(claim_from=["uploading"], claim_as="importing", done="imported")
CODES = StateGuard(claim_from=["imported"], claim_as="coding", done="ready")
REVIEW = StateGuard(field="review", claim_from=["uploading"], claim_as="coding", done="ready")


@pytest.fixture(params=stores("redis"), autouse=True)
def store(request: pytest.FixtureRequest, settings: Any) -> Any:
    """The store in force, empty; no guard is registered."""
    no_guards()
    yield from in_store(request.param, settings)


def test_a_row_is_put_back_by_the_guard_that_claimed_it_not_by_its_proxys() -> None:
    guarded_function(Import, "import:{video_id}", guard=IMPORTS)
    guarded_function(Video, "code:{video_id}", guard=CODES)
    for model in (Video, Import):
        video = Video.objects.create(status="imported")
        Claim.take(model, video.pk, CODES, new_token())  # its worker dies now
        assert tally_of(swept()) == {"abandoned": (1, 1, 0, 0)}
        video.refresh_from_db()
        assert (video.status, video.lock_token) == ("imported", "")


def test_a_row_that_is_claimed_through_a_proxy_is_worked_on() -> None:
    """By its state alone: both guards claim with the same one."""

    @model_lock(PlainImport, "import:{pk}", guard=StateGuard(claim_from=["new"], claim_as="busy", done="imported"))
    def imports(pk: int) -> None:
        assert tally_of(swept()) == {}

    guarded_function(
        PlainVideo, "code:{video_id}", guard=StateGuard(claim_from=["imported"], claim_as="busy", done="ready")
    )
    video = PlainVideo.objects.create(status="new")
    imports(video.pk)
    video.refresh_from_db()
    assert video.status == "imported"


def test_of_two_columns_that_of_the_claim_is_put_back() -> None:
    guarded_function(Reel, "status:{video_id}", guard=IMPORTS)
    guarded_function(Reel, "review:{video_id}", guard=REVIEW)
    reel = Reel.objects.create(status="imported")
    Claim.take(Reel, reel.pk, REVIEW, new_token())
    assert tally_of(swept()) == {"abandoned": (1, 1, 0, 0)}
    reel.refresh_from_db()
    assert (reel.status, reel.review) == ("imported", "uploading")


class TestRelease:
    """An operator takes a lock away whose row several guards may claim."""

    @pytest.mark.parametrize("model", [Video, PlainVideo], ids=["token", "state"])
    def test_by_the_guard_that_claimed_it(self, model: Any) -> None:
        guarded_function(model, "import:{video_id}", guard=IMPORTS)

        @model_lock(model, "code:{pk}:{quality}", guard=CODES)
        def code(pk: int, quality: str) -> None:
            name = f"code:{pk}:{quality}"
            shown = get_lock(name).row
            assert shown is not None
            assert shown.states == ["imported"]
            assert release_lock(name, by=BY).fenced

        video = model.objects.create(status="imported")
        with pytest.raises(StaleClaim):
            code(video.pk, "hd")
        video.refresh_from_db()
        assert video.status == "imported"

    def test_of_two_columns_it_says_that_it_cannot_tell(self) -> None:
        one = StateGuard(claim_from=["uploading"], claim_as="processing", done="ready")
        other = StateGuard(field="review", claim_from=["uploading"], claim_as="processing", done="ready")
        guarded_function(Reel, "reel:{video_id}", guard=one)

        @model_lock(Reel, "reel:{pk}", guard=other)
        def work(pk: UUID) -> None:
            Reel.objects.update(status="processing")
            with pytest.raises(TaskLockError, match="which guard claimed the row of lock .* is not known here"):
                release_lock(f"reel:{pk}", by=BY, row_state="uploading")

        reel = Reel.objects.create()
        work(reel.pk)
        reel.refresh_from_db()
        assert reel.review == "ready"
