"""Serializers for limiters. Durations are seconds, times ISO 8601 in UTC; no token is ever included."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from rest_framework import serializers

from django_tasklock.backends.contract.rates import ALGORITHMS
from django_tasklock.operations import LimitOutcome, LimitPage, LimitView, PermitsView
from django_tasklock.operations.limits.rates import LONGEST_PAUSE
from django_tasklock.operations.limits.values import LimitResult, PermitsPage
from django_tasklock.rates.usage import RateUsage, WindowUsage
from django_tasklock.rest.serializers import ActSerializer, AskSerializer, InfoSerializer, ValueSerializer, one_of


class PermitsQuerySerializer(ValueSerializer):
    """Query parameters of the list of concurrency limiters."""

    text = serializers.CharField(
        default="", allow_blank=True, trim_whitespace=False, max_length=200, help_text="Part of the name."
    )


class LimitQuerySerializer(PermitsQuerySerializer):
    """Query parameters of the list of rate limits."""

    name = serializers.CharField(
        default=None,
        allow_null=True,
        trim_whitespace=False,
        max_length=420,
        help_text="The whole name: only this limiter, or tenant of a limiter, if it is known.",
    )
    offset = serializers.IntegerField(default=0, min_value=0, max_value=10**9)
    limit = serializers.IntegerField(default=50, min_value=1, max_value=200)


class ChangeSerializer(AskSerializer):
    """The share of the limit to enforce, and the reason."""

    share = serializers.FloatField(
        min_value=0.000001, max_value=1, help_text="The share of the callers' limit to enforce; 1 is all of it."
    )


class PauseSerializer(AskSerializer):
    """The length of the pause, and the reason."""

    seconds = serializers.FloatField(min_value=1, max_value=LONGEST_PAUSE, help_text="From now; at most a week.")


class MemberSerializer(AskSerializer):
    """The member whose permit to release, and the reason."""

    member = serializers.CharField(max_length=64, help_text="The member's fingerprint, as shown.")


class WindowSerializer(ValueSerializer):
    """The usage of one rate of a limiter."""

    value_class = WindowUsage
    value_fields = "rate window limit used ahead"


class UsageSerializer(ValueSerializer):
    """The usage of a limiter. Seconds count from `time`."""

    value_class = RateUsage
    value_fields = "time windows next tail paused share free refused"
    windows = WindowSerializer(many=True)


class LimitSerializer(ValueSerializer):
    """A rate limit."""

    value_class = LimitView
    value_fields = "name limiter tenant configured algorithm rates state waiting tenants usage"
    algorithm = one_of(*ALGORITHMS, allow_blank=True)
    usage = UsageSerializer(allow_null=True, help_text="Null: no past call counts, and the rates are unknown.")


class LimitPageSerializer(ValueSerializer):
    """A page of rate limits."""

    value_class = LimitPage
    value_fields = "limits total next"
    limits = LimitSerializer(many=True)


class PermitsSerializer(ValueSerializer):
    """A concurrency limiter of which a permit is taken."""

    value_class = PermitsView
    value_fields = "name limit used waiting members"
    used = serializers.IntegerField()
    members = InfoSerializer(many=True, help_text="The members, the longest holding first.")


class PermitsPageSerializer(ValueSerializer):
    """Concurrency limiters of which permits are taken."""

    value_class = PermitsPage
    value_fields = "limiters more"
    limiters = PermitsSerializer(many=True)


class LimitDetailSerializer(LimitSerializer):
    """A rate limit and all that is known about it."""

    tenants_seen = LimitSerializer(many=True, help_text="The first hundred tenants, the last used first.")
    history = ActSerializer(many=True)

    def sources(self, value: Any) -> tuple[Any, ...]:
        """Return the other parts of a ``LimitDetail``, and its limit, which exists here."""
        return SimpleNamespace(tenants_seen=value.tenants, history=value.history), value.limit


class LimitResultSerializer(ValueSerializer):
    """The result of an action on a limiter."""

    value_class = LimitResult
    value_fields = "name outcome share before member seconds"
    outcome = one_of(
        LimitOutcome.RESET, LimitOutcome.CHANGED, LimitOutcome.PAUSED, LimitOutcome.RESUMED, LimitOutcome.RELEASED
    )
    seconds = serializers.FloatField(
        help_text="After a pause: its length; after a resume: what remained of it; otherwise 0."
    )
    member = InfoSerializer(allow_null=True, help_text="The member whose permit was released.")
