"""Serializers for locks. Durations are seconds, times ISO 8601 in UTC; no token is ever included."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar, cast, get_args

from rest_framework import serializers

from django_tasklock.backends.contract.queries import Order, Query
from django_tasklock.celery import ParkedInfo
from django_tasklock.operations import (
    LockCounts,
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
from django_tasklock.operations.values import DEAD
from django_tasklock.rest.serializers import (
    ActSerializer,
    AskSerializer,
    InfoSerializer,
    StateField,
    ValueSerializer,
    one_of,
)


class QuerySerializer(ValueSerializer):
    """Query parameters of the list of locks."""

    state = serializers.ChoiceField(
        choices=[*map(str, LockState), DEAD],
        default=str(LockState.LIVE),
        help_text="live includes expiring and no_expiry; dead: live, but the holder's process has ended; orphaned locks"
        " are free. Dead and orphaned ones are sorted by expiry.",
    )
    task = serializers.CharField(
        default="", allow_blank=True, trim_whitespace=False, max_length=255, help_text="Whole name of a task."
    )
    text = serializers.CharField(
        default="", allow_blank=True, trim_whitespace=False, max_length=200, help_text="Part of the lock's name."
    )
    waiting = serializers.BooleanField(default=False, help_text="Only locks with waiters.")
    order = serializers.ChoiceField(
        choices=[sign + order for order in get_args(Order) for sign in ("", "-")],
        default="expiry",
        help_text="By the end of the lease, by age, or by the time left until the timeout, the least first;"
        " `-` reverses the order.",
    )
    offset = serializers.IntegerField(default=0, min_value=0, max_value=10**9)
    limit = serializers.IntegerField(default=100, min_value=1, max_value=1000)

    def query(self) -> Query:
        """Return the query for ``operations.list_locks``."""
        given = cast("dict[str, Any]", self.validated_data)
        order = given["order"]
        return Query(
            which="live" if given["state"] == DEAD else given["state"],
            order=order.removeprefix("-"),
            descending=order.startswith("-"),
            text=given["text"],
            task=given["task"],
            waiting=given["waiting"],
            offset=given["offset"],
            limit=given["limit"],
        )


class ReleaseSerializer(AskSerializer):
    """The reason, and the state in which to leave the row."""

    row_state = StateField(
        default=None,
        allow_null=True,
        help_text="The state in which to leave the guarded row, one of its states. By default the guard's choice.",
    )


class RowSerializer(ValueSerializer):
    """A guarded row."""

    value_class: ClassVar[Any] = RowRef
    value_fields = "model pk lookup"


class LockSerializer(InfoSerializer):
    """A lock."""

    value_class = LockView
    value_fields = "state lapsed_for asked_for parked alive instances row"
    row = RowSerializer(allow_null=True)

    def sources(self, value: Any) -> tuple[Any, ...]:
        """Return the lock and its info, whose fields are merged."""
        return value, value.info


class CountsSerializer(ValueSerializer):
    """The number of locks; all but the orphaned ones are included in the live ones."""

    value_class = LockCounts
    value_fields = "live expiring no_expiry orphaned dead"


class LockPageSerializer(ValueSerializer):
    """A page of locks."""

    value_class = LockPage
    value_fields = "locks total next ordered"
    locks = LockSerializer(many=True)
    counts = CountsSerializer()


class RowSideSerializer(RowSerializer):
    """The guarded row of a lock."""

    value_class = RowSide
    value_fields = "exists field state fingerprint epoch fenced agrees states"

    def sources(self, value: Any) -> tuple[Any, ...]:
        """Return the row's state, and its model and key."""
        return value, value.ref


class ParkedSerializer(ValueSerializer):
    """A message that waits for the lock outside the broker."""

    value_class = ParkedInfo
    value_fields = "task task_id state mode parked_at waited crashes"


class LockDetailSerializer(LockSerializer):
    """A lock and all that is known about it."""

    row = RowSideSerializer(allow_null=True)
    explanation = serializers.ListField(child=serializers.CharField(), help_text="Why the lock is in this state.")
    messages = ParkedSerializer(many=True, help_text="The messages parked behind it in the database.")
    history = ActSerializer(many=True)

    def sources(self, value: Any) -> tuple[Any, ...]:
        """Return the other parts of a ``LockDetail``, and its lock, which is held here."""
        other_parts = SimpleNamespace(
            row=value.row, explanation=value.explanation, messages=value.parked, history=value.history
        )
        return other_parts, *super().sources(value.lock)


class WaiterSerializer(ValueSerializer):
    """A waiter for the lock."""

    value_class = WaiterInfo
    value_fields = "holder task task_id since waited present"


class WaitersSerializer(ValueSerializer):
    """The waiters of a lock."""

    value_class = WaitersPage
    value_fields = "waiters total known"
    waiters = WaiterSerializer(many=True, help_text="The first fifty, the longest waiting first.")


class ResultSerializer(ValueSerializer):
    """The result of an action on a lock."""

    value_class = Result
    value_fields = "name outcome fenced before alive"
    outcome = one_of(Outcome.RELEASED, Outcome.ASKED)
    before = InfoSerializer(allow_null=True, help_text="The holder before the action.")
