"""What is taken and sent of locks. Durations are seconds, times ISO 8601 in UTC; a token is in none of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar, cast, get_args

from rest_framework import serializers

from django_tasklock.backends.contract.queries import Counts, Order, Query
from django_tasklock.celery import ParkedInfo
from django_tasklock.operations import (
    Awaited,
    LockPage,
    LockState,
    LockView,
    Outcome,
    Result,
    RowRef,
    RowSide,
    WaiterInfo,
    WaitersPage,
)
from django_tasklock.rest.shapes import ActSerializer, AskSerializer, InfoSerializer, Shape, State, one_of


class QuerySerializer(Shape):
    """The parameters of the list."""

    state = serializers.ChoiceField(
        choices=[str(state) for state in LockState],
        default=str(LockState.LIVE),
        help_text="live has expiring and no_expiry in it; orphaned ones are free, and come in order of expiry.",
    )
    task = serializers.CharField(
        default="", allow_blank=True, trim_whitespace=False, max_length=255, help_text="Whole name of a task."
    )
    text = serializers.CharField(
        default="", allow_blank=True, trim_whitespace=False, max_length=200, help_text="Part of the lock's name."
    )
    waiting = serializers.BooleanField(default=False, help_text="Only those that somebody waits for.")
    order = serializers.ChoiceField(
        choices=[sign + order for order in get_args(Order) for sign in ("", "-")],
        default="expiry",
        help_text="By the end of the lease, by age, by what is left of the timeout, least first; - turns it round.",
    )
    offset = serializers.IntegerField(default=0, min_value=0, max_value=10**9)
    limit = serializers.IntegerField(default=100, min_value=1, max_value=1000)

    def query(self) -> Query:
        """Return the parameters as the query that ``operations.list_locks`` takes."""
        given = cast("dict[str, Any]", self.validated_data)
        order = given["order"]
        return Query(
            which=given["state"],
            order=order.removeprefix("-"),
            descending=order.startswith("-"),
            text=given["text"],
            task=given["task"],
            waiting=given["waiting"],
            offset=given["offset"],
            limit=given["limit"],
        )


class ReleaseSerializer(AskSerializer):
    """Why, and what becomes of the row."""

    row_state = State(
        default=None,
        allow_null=True,
        help_text="What to leave the guarded row in: one of its states. Left out: the guard's own choice.",
    )


class RowSerializer(Shape):
    """A guarded row."""

    of: ClassVar[Any] = RowRef
    names = "model pk"


class LockSerializer(InfoSerializer):
    """One lock."""

    of = LockView
    names = "state lapsed_for asked_for parked alive instances row"
    row = RowSerializer(allow_null=True)

    def parts(self, value: Any) -> tuple[Any, ...]:
        """Return the lock and who has it: on the wire they are one."""
        return value, value.info


class CountsSerializer(Shape):
    """How many locks there are: expiring ones and ones without expiry are live too."""

    of = Counts
    names = "live expiring no_expiry orphaned"


class LockPageSerializer(Shape):
    """A page of locks."""

    of = LockPage
    names = "locks total next ordered"
    locks = LockSerializer(many=True)
    counts = CountsSerializer()


class RowSideSerializer(RowSerializer):
    """The guarded row, beside its lock."""

    of = RowSide
    names = "exists field state fingerprint epoch fenced agrees states"

    def parts(self, value: Any) -> tuple[Any, ...]:
        """Return what is known of the row, and which one it is."""
        return value, value.ref


class ParkedSerializer(Shape):
    """A message that waits for the lock outside the broker."""

    of = ParkedInfo
    names = "task task_id state mode parked_at waited crashes"


class LockDetailSerializer(LockSerializer):
    """One lock and everything that is known of it."""

    row = RowSideSerializer(allow_null=True)
    explanation = serializers.ListField(child=serializers.CharField(), help_text="Why it is in this state.")
    messages = ParkedSerializer(many=True, help_text="Those that wait for it in the database.")
    history = ActSerializer(many=True)

    def parts(self, value: Any) -> tuple[Any, ...]:
        """Return what a ``LockDetail`` says beside its lock, and the lock, which is held."""
        beside = SimpleNamespace(
            row=value.row, explanation=value.explanation, messages=value.parked, history=value.history
        )
        return beside, *super().parts(value.lock)


class WaiterSerializer(Shape):
    """Somebody who waits in its process for the lock."""

    of = WaiterInfo
    names = "holder task task_id since waited present"


class AwaitedSerializer(Shape):
    """Something that the lock's holder waits for itself."""

    of = Awaited
    names = "kind name since waited held_by sure deadlock"
    kind = one_of("lock", "permit", "rate")


class WaitersSerializer(Shape):
    """Who waits for a lock, and what its holder waits for."""

    of = WaitersPage
    names = "waiters total known"
    waiters = WaiterSerializer(many=True, help_text="The first fifty, the one that waits longest first.")
    awaited = AwaitedSerializer(many=True, help_text="What its holder waits for: another lock, a permit, a rate.")


class ResultSerializer(Shape):
    """What was done."""

    of = Result
    names = "name outcome fenced before"
    outcome = one_of(Outcome.RELEASED, Outcome.ASKED)
    before = InfoSerializer(allow_null=True, help_text="Who had the lock.")
