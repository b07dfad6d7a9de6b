"""What is taken and sent of limiters. Durations are seconds, times ISO 8601 in UTC; a token is in none of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from rest_framework import serializers

from django_tasklock.backends.contract.rates import ALGORITHMS
from django_tasklock.operations import LimitOutcome, LimitPage, LimitView, PermitsView
from django_tasklock.operations.limits.rates import LONGEST_PAUSE
from django_tasklock.operations.limits.values import LimitResult, PermitsPage
from django_tasklock.rates.usage import RateUsage, WindowUsage
from django_tasklock.rest.shapes import ActSerializer, AskSerializer, InfoSerializer, Shape, one_of


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


class PauseSerializer(AskSerializer):
    """For how long, and why."""

    seconds = serializers.FloatField(min_value=1, max_value=LONGEST_PAUSE, help_text="From now on; at most a week.")


class MemberSerializer(AskSerializer):
    """Whose permit, and why."""

    member = serializers.CharField(max_length=64, help_text="The member's fingerprint, as it was shown.")


class WindowSerializer(Shape):
    """One rate of a limiter."""

    of = WindowUsage
    names = "rate window limit used ahead"


class UsageSerializer(Shape):
    """How a limiter stands. Seconds from `time` on."""

    of = RateUsage
    names = "time windows next tail paused share free refused"
    windows = WindowSerializer(many=True)


class LimitSerializer(Shape):
    """One rate limit."""

    of = LimitView
    names = "name limiter tenant configured algorithm rates state waiting tenants usage"
    algorithm = one_of(*ALGORITHMS, allow_blank=True)
    usage = UsageSerializer(allow_null=True, help_text="Null: nothing counts any more and its rates are not known.")


class LimitPageSerializer(Shape):
    """A page of rate limits."""

    of = LimitPage
    names = "limits total next"
    limits = LimitSerializer(many=True)


class PermitsSerializer(Shape):
    """A concurrency limiter of which somebody has a permit."""

    of = PermitsView
    names = "name limit used waiting members"
    used = serializers.IntegerField()
    members = InfoSerializer(many=True, help_text="The one that has a permit longest first.")


class PermitsPageSerializer(Shape):
    """Concurrency limiters in use."""

    of = PermitsPage
    names = "limiters more"
    limiters = PermitsSerializer(many=True)


class LimitDetailSerializer(LimitSerializer):
    """One rate limit and everything that is known of it."""

    tenants_seen = LimitSerializer(many=True, help_text="The first hundred, the one used last first.")
    history = ActSerializer(many=True)

    def parts(self, value: Any) -> tuple[Any, ...]:
        """Return what a ``LimitDetail`` says beside its limit, and the limit, which is known."""
        return SimpleNamespace(tenants_seen=value.tenants, history=value.history), value.limit


class LimitResultSerializer(Shape):
    """What was done."""

    of = LimitResult
    names = "name outcome share before member seconds"
    outcome = one_of(
        LimitOutcome.RESET, LimitOutcome.CHANGED, LimitOutcome.PAUSED, LimitOutcome.RESUMED, LimitOutcome.RELEASED
    )
    seconds = serializers.FloatField(
        help_text="For how long nobody goes now; of one that goes on: would have gone. 0 of all others."
    )
    member = InfoSerializer(allow_null=True, help_text="Who lost its permit.")
