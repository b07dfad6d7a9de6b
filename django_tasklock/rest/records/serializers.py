"""Serializers for sweep runs and the audit trail."""

from __future__ import annotations

from datetime import tzinfo
from typing import Any, cast

from django.utils.timezone import get_current_timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from django_tasklock.operations import ActPage, ActQuery, SweepRun
from django_tasklock.operations.values import Act
from django_tasklock.rest.serializers import ActSerializer, ValueSerializer


@extend_schema_field(OpenApiTypes.OBJECT)
class ReportField(serializers.Field):
    """The document that ``manage.py sweep_locks --json`` writes."""

    def to_representation(self, value: Any) -> Any:
        """Return the report as a dict."""
        return dict(value)


class RunsQuerySerializer(ValueSerializer):
    """The query parameter of the list of runs."""

    limit = serializers.IntegerField(default=20, min_value=1, max_value=200)


class RunSerializer(ValueSerializer):
    """A run of the sweep."""

    value_class = SweepRun
    value_fields = "number at actor scope swept seconds problem"


class RunDetailSerializer(RunSerializer):
    """A run with its findings."""

    report = ReportField(help_text="As `manage.py sweep_locks --json` writes it, with the first hundred findings.")


class RunListSerializer(ValueSerializer):
    """The last runs."""

    runs = RunSerializer(many=True)
    age = serializers.FloatField(
        allow_null=True, help_text="Seconds since the last sweep of everything; null: none is recorded."
    )


class SweepSerializer(ValueSerializer):
    """The options of a sweep."""

    dry_run = serializers.BooleanField(
        default=True, help_text="True: report what would be repaired, and change nothing. False: repair it."
    )
    prefix = serializers.CharField(
        default="", allow_blank=True, max_length=200, help_text="Only locks whose names begin with this."
    )


class ReportSerializer(ValueSerializer):
    """What a sweep found and did."""

    report = ReportField(help_text="As `manage.py sweep_locks --json` writes it.")


class AwareDateTimeField(serializers.DateTimeField):
    """An aware time, even if ``USE_TZ`` is off; a time without a zone is in the project's."""

    def default_timezone(self) -> tzinfo:
        """Return the zone for a time without one."""
        return get_current_timezone()


class AuditQuerySerializer(ValueSerializer):
    """Query parameters of the audit trail."""

    actor = serializers.CharField(default="", allow_blank=True, max_length=200, help_text="Part of the actor's name.")
    action = serializers.CharField(
        default="", allow_blank=True, max_length=40, help_text="The whole code of an action, such as `release`."
    )
    name = serializers.CharField(
        default="",
        allow_blank=True,
        trim_whitespace=False,
        max_length=420,
        help_text="The name of a lock or limiter, or a part of it.",
    )
    since = AwareDateTimeField(default=None, allow_null=True, help_text="Not before this time.")
    before = AwareDateTimeField(default=None, allow_null=True, help_text="Before this time.")
    below = serializers.IntegerField(default=None, allow_null=True, min_value=1, max_value=2**62)
    limit = serializers.IntegerField(default=100, min_value=1, max_value=1000)

    def query(self) -> ActQuery:
        """Return the filter for ``operations``."""
        given = cast("dict[str, Any]", self.validated_data)
        return ActQuery(**{name: given[name] for name in ActQuery._fields})


class EntrySerializer(ActSerializer):
    """An entry of the audit trail."""

    value_class = Act
    value_fields = "name number"


class AuditPageSerializer(ValueSerializer):
    """A page of the audit trail, the latest first."""

    value_class = ActPage
    value_fields = "acts next"
    acts = EntrySerializer(many=True)
