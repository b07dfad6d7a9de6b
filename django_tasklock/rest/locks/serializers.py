"""What is sent. Durations are seconds, times ISO 8601 in UTC; a token is in none of it."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from rest_framework import serializers

from django_tasklock.operations import LockDetail, LockState, LockView, Outcome, Result, RowSide
from django_tasklock.rest.fields import Shape, State, moment, one_of
from django_tasklock.types import LockInfo

__all__ = ["ActSerializer", "InfoSerializer", "LockDetailSerializer", "LockPageSerializer", "ProblemSerializer",
           "ResultSerializer", "detail", "info", "lock", "result"]  # fmt: skip


class InfoSerializer(Shape):
    """Who has a lock, and until when."""

    name = serializers.CharField()
    holder = serializers.CharField(help_text="Host, process, task: for people.")
    fingerprint = serializers.CharField(help_text="Of the holder's token: other for every hold. The ETag.")
    task = serializers.CharField()
    task_id = serializers.CharField()
    acquired_at = moment()
    held_for = serializers.FloatField(help_text="Seconds.")
    ttl = serializers.FloatField(
        allow_null=True, help_text="Seconds until the key expires unless renewed. Null: never. Negative: expired."
    )
    time_left = serializers.FloatField(
        help_text="Seconds until the holder has had it for its whole timeout; years where it has none."
    )
    fence = serializers.IntegerField()
    waiting = serializers.IntegerField(help_text="Callers that wait in their processes.")


class RowSerializer(Shape):
    """A guarded row."""

    model = serializers.CharField()
    pk = serializers.CharField()


class LockSerializer(InfoSerializer):
    """One lock."""

    state = one_of(*LockState)
    lapsed_for = serializers.FloatField(
        allow_null=True, help_text="Seconds since its lease ended, where it is orphaned."
    )
    asked_for = serializers.FloatField(
        allow_null=True, help_text="Seconds since its holder was asked to give it back. Null: it was not."
    )
    parked = serializers.IntegerField(help_text="Messages that wait for it in the database.")
    alive = serializers.BooleanField(
        allow_null=True, help_text="Whether the holder's process runs. Null: it cannot be known from the server asked."
    )
    row = RowSerializer(allow_null=True)


class CountsSerializer(Shape):
    """How many locks there are: expiring ones and ones without expiry are live too."""

    live = serializers.IntegerField()
    expiring = serializers.IntegerField()
    no_expiry = serializers.IntegerField()
    orphaned = serializers.IntegerField()


class LockPageSerializer(Shape):
    """A page of locks."""

    locks = LockSerializer(many=True)
    total = serializers.IntegerField(help_text="How many are in that state, before any other filter.")
    next = serializers.IntegerField(allow_null=True, help_text="The offset to go on at. Null: there are no more.")
    counts = CountsSerializer()


class RowSideSerializer(RowSerializer):
    """The guarded row, beside its lock."""

    exists = serializers.BooleanField()
    field = serializers.CharField(help_text="The name of its state column.")
    state = State(allow_null=True)
    fingerprint = serializers.CharField(
        allow_blank=True, help_text="Of the token in the row. Empty: nobody has claimed it, or its model has no token."
    )
    epoch = serializers.IntegerField(allow_null=True)
    fenced = serializers.BooleanField(help_text="Whether its model has token and epoch.")
    agrees = serializers.BooleanField(help_text="Whether it is claimed by the holder of the lock.")
    states = serializers.ListField(child=State(), help_text="What a release may leave it in, the usual one first.")


class ParkedSerializer(Shape):
    """A message that waits for the lock outside the broker."""

    task = serializers.CharField()
    task_id = serializers.CharField()
    state = serializers.CharField()
    mode = serializers.CharField()
    parked_at = moment()
    waited = serializers.FloatField(help_text="Seconds.")
    crashes = serializers.IntegerField(help_text="How many workers died of it.")


class ActSerializer(Shape):
    """What an operator, a key or the sweep did to it."""

    at = moment()
    actor = serializers.CharField()
    action = serializers.CharField()
    reason = serializers.CharField()
    outcome = serializers.CharField()


class LockDetailSerializer(LockSerializer):
    """One lock and everything that is known of it."""

    row = RowSideSerializer(allow_null=True)
    explanation = serializers.ListField(child=serializers.CharField(), help_text="Why it is in this state.")
    messages = ParkedSerializer(many=True, help_text="Those that wait for it in the database.")
    history = ActSerializer(many=True)


class ResultSerializer(Shape):
    """What was done."""

    name = serializers.CharField()
    outcome = one_of(Outcome.RELEASED, Outcome.ASKED)
    fenced = serializers.BooleanField(help_text="Whether the guarded row was taken from its holder as well.")
    before = InfoSerializer(allow_null=True, help_text="Who had the lock.")


class ProblemSerializer(Shape):
    """Everything that is not a success."""

    code = serializers.CharField(help_text="For programs.")
    detail = serializers.CharField(help_text="For people: a sentence.")


def lock(view: LockView) -> dict[str, Any]:
    """What ``LockSerializer`` is given."""
    own = {name: getattr(view, name) for name in ("state", "lapsed_for", "asked_for", "parked", "alive", "row")}
    return info(view.info) | own


def detail(found: LockDetail) -> dict[str, Any]:
    """What ``LockDetailSerializer`` is given: of a lock that is held."""
    assert found.lock is not None
    more = {
        "row": _side(found.row) if found.row else None,
        "explanation": [str(sentence) for sentence in found.explanation],
        "messages": found.parked,
        "history": found.history,
    }
    return lock(found.lock) | more


def result(done: Result) -> dict[str, Any]:
    """What ``ResultSerializer`` is given."""
    return done._asdict() | {"before": info(done.before) if done.before else None}


def info(known: LockInfo) -> dict[str, Any]:
    """What ``InfoSerializer`` is given."""
    return {field.name: getattr(known, field.name) for field in fields(known)}  # as a mapping its times are text


def _side(side: RowSide) -> dict[str, Any]:
    return {field.name: getattr(side, field.name) for field in fields(side)} | side.ref._asdict()
