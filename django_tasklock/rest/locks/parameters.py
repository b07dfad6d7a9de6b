"""What is taken: the parameters of the list, and the bodies of the two acts."""

from __future__ import annotations

from typing import Any, cast, get_args

from rest_framework import serializers

from django_tasklock.backends.contract.queries import Order, Query, Which
from django_tasklock.operations import LockState
from django_tasklock.rest.fields import Shape, State

__all__ = ["AskSerializer", "QuerySerializer", "ReleaseSerializer"]

_WHICH: dict[str, Which] = {
    LockState.LIVE: "live",
    LockState.EXPIRING: "expiring",
    LockState.UNENDING: "unending",
    LockState.ORPHANED: "lapsed",
}


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
        """The same for ``operations``."""
        given = cast("dict[str, Any]", self.validated_data)
        order = given["order"]
        return Query(
            which=_WHICH[given["state"]],
            order=order.removeprefix("-"),
            descending=order.startswith("-"),
            text=given["text"],
            task=given["task"],
            waiting=given["waiting"],
            offset=given["offset"],
            limit=given["limit"],
        )


class AskSerializer(Shape):
    """Why."""

    reason = serializers.CharField(
        default="", allow_blank=True, max_length=1000, help_text="Kept in the audit trail, for whoever looks later."
    )


class ReleaseSerializer(AskSerializer):
    """Why, and what becomes of the row."""

    row_state = State(
        default=None,
        allow_null=True,
        help_text="What to leave the guarded row in: one of its states. Left out: the guard's own choice.",
    )
