"""Serializers for parked messages. Their contents are never included."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from rest_framework import serializers

from django_tasklock.celery import ParkedInfo
from django_tasklock.operations import ParkedPage, ParkedQuery, ParkedView
from django_tasklock.operations.parked.listing import STATES
from django_tasklock.rest.serializers import ValueSerializer


class MessagesQuerySerializer(ValueSerializer):
    """Query parameters of the list."""

    state = serializers.ChoiceField(
        choices=STATES,
        default="",
        allow_blank=True,
        help_text="Only messages in this state.",
    )
    text = serializers.CharField(
        default="",
        allow_blank=True,
        trim_whitespace=False,
        max_length=200,
        help_text="A message's id or a lock's name; otherwise part of the name of a lock or task.",
    )
    newest = serializers.BooleanField(default=False, help_text="True: sort by parking time, the latest first.")
    after = serializers.IntegerField(default=0, min_value=0, max_value=2**62)
    limit = serializers.IntegerField(default=50, min_value=1, max_value=500)

    def query(self) -> ParkedQuery:
        """Return the query for ``operations.list_parked``."""
        return ParkedQuery(**cast("dict[str, Any]", self.validated_data))


class MessageSerializer(ValueSerializer):
    """A stored message."""

    value_class = ParkedInfo
    value_fields = (
        "id task_id name task state mode number parked_at waited changed crashes attempts problem holder alive"
    )
    why = serializers.ListField(child=serializers.CharField(), help_text="What it waits for, in sentences.")

    def sources(self, value: ParkedView) -> tuple[Any, ...]:
        """Return the reasons why it waits, and the message."""
        return SimpleNamespace(why=[str(sentence) for sentence in value.why]), value.info


class MessagePageSerializer(ValueSerializer):
    """A page of stored messages."""

    value_class = ParkedPage
    value_fields = "messages counts next store_down"
    messages = MessageSerializer(many=True)
    counts = serializers.DictField(
        child=serializers.IntegerField(), help_text="The number of messages in each state, before any filter."
    )


class MessageResultSerializer(ValueSerializer):
    """The result of an action on a message."""

    task_id = serializers.CharField()
    outcome = serializers.RegexField("^(requeued|published|discarded)$")
