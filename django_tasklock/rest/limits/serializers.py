"""What is taken and sent of limiters. Durations are seconds, times ISO 8601 in UTC; a token is in none of it."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from rest_framework import serializers

from django_tasklock.backends.contract.rates import ALGORITHMS
from django_tasklock.operations import LimitDetail, LimitOutcome, LimitPage, LimitState, LimitView, PermitsView
from django_tasklock.operations.limits.values import LimitResult
from django_tasklock.rest.fields import Shape, moment, one_of
from django_tasklock.rest.locks.parameters import AskSerializer
from django_tasklock.rest.locks.serializers import ActSerializer, InfoSerializer, info

__all__ = ["ChangeSerializer", "LimitDetailSerializer", "LimitPageSerializer", "LimitQuerySerializer",
           "LimitResultSerializer", "MemberSerializer", "PermitsPageSerializer", "PermitsQuerySerializer",
           "PermitsSerializer", "detail", "page", "permits", "result"]  # fmt: skip


class PermitsQuerySerializer(Shape):
    """The parameters of the list of concurrency limiters."""

    text = serializers.CharField(
        default="", allow_blank=True, trim_whitespace=False, max_length=200, help_text="Part of the name."
    )


class LimitQuerySerializer(PermitsQuerySerializer):
    """The parameters of the list of rate limits."""

    name = serializers.CharField(
        default=None,
        allow_null=True,
        trim_whitespace=False,
        max_length=420,
        help_text="Whole name: that one, if it is known, also if it is a tenant's.",
    )
    offset = serializers.IntegerField(default=0, min_value=0, max_value=10**9)
    limit = serializers.IntegerField(default=50, min_value=1, max_value=200)


class ChangeSerializer(AskSerializer):
    """How much of the limit is to be in force, and why."""

    share = serializers.FloatField(
        min_value=0.000001, max_value=1, help_text="Of the limit that its callers have; 1 is all of it."
    )


class MemberSerializer(AskSerializer):
    """Whose permit, and why."""

    member = serializers.CharField(max_length=64, help_text="The member's fingerprint, as it was shown.")


class WindowSerializer(Shape):
    """One rate of a limiter."""

    rate = serializers.CharField(help_text="As its callers have it.")
    window = serializers.FloatField(help_text="Seconds.")
    limit = serializers.IntegerField(help_text="In force now.")
    used = serializers.IntegerField(help_text="Units in the window that ends now.")
    ahead = serializers.IntegerField(help_text="Units booked for later.")


class UsageSerializer(Shape):
    """How a limiter stands. Seconds from `time` on."""

    time = moment(help_text="The store's clock.")
    windows = WindowSerializer(many=True)
    next = serializers.FloatField(help_text="How long a call would wait that came now.")
    tail = serializers.FloatField(help_text="How long until the last place that is booked.")
    paused = serializers.FloatField(help_text="For how long nobody goes, after a pushback.")
    share = serializers.FloatField(help_text="Of the limit that is in force.")
    free = serializers.IntegerField(help_text="Places given back that nobody has taken yet.")
    refused = serializers.IntegerField(help_text="Calls refused since it was made or reset.")


class LimitSerializer(Shape):
    """One rate limit."""

    name = serializers.CharField()
    limiter = serializers.CharField(help_text="Whose tenant it is; of a limiter itself its own name.")
    tenant = serializers.CharField(
        allow_null=True, allow_blank=True, help_text="Empty: the default tenant. Null: it is no tenant's."
    )
    configured = serializers.BooleanField(help_text="Whether it is in the settings.")
    algorithm = one_of("", *ALGORITHMS, allow_blank=True)
    rates = serializers.ListField(child=serializers.CharField())
    state = one_of(*LimitState)
    waiting = serializers.IntegerField(help_text="Units whose turn is still to come.")
    tenants = serializers.IntegerField(help_text="How many were seen lately.")
    usage = UsageSerializer(allow_null=True, help_text="Null: nothing counts any more and its rates are not known.")


class LimitPageSerializer(Shape):
    """A page of rate limits."""

    limits = LimitSerializer(many=True)
    total = serializers.IntegerField()
    next = serializers.IntegerField(allow_null=True, help_text="The offset to go on at. Null: there are no more.")


class PermitsSerializer(Shape):
    """A concurrency limiter of which somebody has a permit."""

    name = serializers.CharField()
    limit = serializers.IntegerField(allow_null=True, help_text="The greatest that its members have. Null: not known.")
    used = serializers.IntegerField()
    waiting = serializers.IntegerField(help_text="In the store's queue; 0 where waiters poll.")
    members = InfoSerializer(many=True, help_text="The one that has a permit longest first.")


class PermitsPageSerializer(Shape):
    """Concurrency limiters in use."""

    limiters = PermitsSerializer(many=True)
    more = serializers.BooleanField(help_text="Whether there are more: ask for a part of their names.")


class LimitDetailSerializer(LimitSerializer):
    """One rate limit and everything that is known of it."""

    tenants_seen = LimitSerializer(many=True, help_text="The first hundred, the one used last first.")
    history = ActSerializer(many=True)


class LimitResultSerializer(Shape):
    """What was done."""

    name = serializers.CharField()
    outcome = one_of(LimitOutcome.RESET, LimitOutcome.CHANGED, LimitOutcome.RELEASED)
    share = serializers.FloatField(allow_null=True, help_text="Of the limit, in force now.")
    before = serializers.FloatField(allow_null=True, help_text="In force until then.")
    member = InfoSerializer(allow_null=True, help_text="Who lost its permit.")


def page(found: LimitPage) -> dict[str, Any]:
    """What ``LimitPageSerializer`` is given."""
    return {"limits": [_limit(view) for view in found.limits], "total": found.total, "next": found.next}


def detail(found: LimitDetail) -> dict[str, Any]:
    """What ``LimitDetailSerializer`` is given: of a limit that is known."""
    assert found.limit is not None
    more = {"tenants_seen": [_limit(view) for view in found.tenants], "history": found.history}
    return _limit(found.limit) | more


def permits(found: PermitsView) -> dict[str, Any]:
    """What ``PermitsSerializer`` is given."""
    own = {name: getattr(found, name) for name in ("name", "limit", "used", "waiting")}
    return own | {"members": [info(member) for member in found.members]}


def result(done: LimitResult) -> dict[str, Any]:
    """What ``LimitResultSerializer`` is given."""
    return done._asdict() | {"member": info(done.member) if done.member else None}


def _limit(view: LimitView) -> dict[str, Any]:
    return {field.name: getattr(view, field.name) for field in fields(view)}
