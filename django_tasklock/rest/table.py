"""All end points: one table of who may use each, the fields that it takes, and the function that answers.

The URLs, the view and docs/rest.md (``python -m tests.rest_page``) are made from it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import tzinfo
from typing import Any, Literal, NamedTuple, TypeVar, get_args

from django.utils.timezone import get_current_timezone
from django.utils.translation import gettext as _
from rest_framework import ISO_8601, serializers

from django_tasklock import operations
from django_tasklock.backends.contract.lists import Order, Query
from django_tasklock.names import bare_name
from django_tasklock.operations import LockState, Outcome, to_plain
from django_tasklock.operations.limits.permits import clean_limiter_name, get_permits, list_permits, release_permit
from django_tasklock.operations.limits.rates import (
    LONGEST_PAUSE,
    change_limit,
    get_limit,
    list_limits,
    pause_limit,
    reset_limit,
    resume_limit,
)
from django_tasklock.operations.limits.values import LimitOutcome
from django_tasklock.operations.parked.acts import ParkedOutcome, discard_parked, publish_parked, requeue_parked
from django_tasklock.operations.parked.listing import STATES, ParkedQuery, find_parked, list_parked
from django_tasklock.operations.sweep.options import MAX_SECONDS_IN_REQUEST
from django_tasklock.operations.sweep.runs import find_sweep_run
from django_tasklock.operations.trail import ActQuery, list_acts
from django_tasklock.operations.values import DEAD
from django_tasklock.rest.problems import Code, Problem

T = TypeVar("T")


class EndPoint(NamedTuple):
    """An end point. Those with POST act, and are recorded in the audit trail."""

    name: str
    """The name of its URL: ``reverse("tasklock:locks")``."""
    method: Literal["GET", "POST"]
    path: str
    """The path after the prefix, with the subject in braces."""
    about: str
    """What it answers or does."""
    permissions: tuple[str, ...]
    """The permissions that a user needs, as in the admin."""
    call: Callable[..., Any]
    """Takes the subject and the fields, and ``by`` if it acts; returns a value of ``operations``."""
    fields: Mapping[str, serializers.Field] = {}  # never changed
    """The query parameters of a GET, the fields of the body of a POST."""
    clean: Callable[[str], str] = str
    """Returns the subject in its usual form. Raises ``TaskLockError`` for a name that cannot be."""
    refused: tuple[int, Code] = (400, "invalid")
    """The status and code for a ``TaskLockError`` of ``call``."""
    failures: Mapping[str, tuple[int, Code]] = {}  # never changed
    """The status and code for each outcome that means that nothing was done."""
    if_match: bool = False
    """Whether ``call`` takes the ``fingerprint`` of the header ``If-Match``."""

    @property
    def acts(self) -> bool:
        """Whether it does something."""
        return self.method == "POST"

    @property
    def methods(self) -> list[str]:
        """The methods that are answered."""
        return ["post", "options"] if self.acts else ["get", "head", "options"]

    @property
    def subject(self) -> str:
        """The name of the variable part of the path; empty if there is none."""
        found = re.search(r"{(\w+)}", self.path)
        return found[1] if found else ""


# Fields


class StateField(serializers.Field):
    """The state of a row: a text, a whole number, true or false."""

    def to_internal_value(self, data: Any) -> Any:
        """Return the state."""
        if isinstance(data, bool | int | str):
            return data
        raise serializers.ValidationError(_("A text, a whole number, true or false."))


class AwareDateTimeField(serializers.DateTimeField):
    """An aware time, even if ``USE_TZ`` is off; a time without a zone is in the project's."""

    input_formats = (ISO_8601,)  # whatever the project's own API reads

    def default_timezone(self) -> tzinfo:
        """Return the zone for a time without one."""
        return get_current_timezone()


def _text(about: str, most: int = 200, **more: Any) -> serializers.CharField:
    return serializers.CharField(
        default="", allow_blank=True, trim_whitespace=False, max_length=most, help_text=about, **more
    )


def _number(least: int, most: int, default: int | None, about: str = "") -> serializers.IntegerField:
    return serializers.IntegerField(
        default=default, allow_null=default is None, min_value=least, max_value=most, help_text=about
    )


_NEXT = "the `next` of the page before"
_REASON = {
    "reason": serializers.CharField(
        default="", allow_blank=True, max_length=1000, help_text="why; recorded in the audit trail"
    )
}
_LOCKS = {
    "state": serializers.ChoiceField(
        [*map(str, LockState), DEAD],
        default=str(LockState.LIVE),
        help_text="`live` includes `expiring` (its renewal is overdue), `no_expiry` and `dead` (its holder's process"
        " has ended); `orphaned` locks, whose lease has ended without a release, are free",
    ),
    "text": _text("part of the name, taken literally"),
    "task": _text("the whole name of a task", 255),
    "waiting": serializers.BooleanField(default=False, help_text="`true`: only locks that have waiters"),
    "order": serializers.ChoiceField(
        [sign + order for order in get_args(Order) for sign in ("", "-")],
        default="expiry",
        help_text="end of the lease, age, or rest of the timeout, lowest first; `-` reverses the order. `orphaned` and"
        " `dead` locks come in order of expiry",
    ),
    "offset": _number(0, 10**9, 0, _NEXT),
    "limit": _number(1, 1000, 100),
}
_RELEASE = {
    **_REASON,
    "row_state": StateField(
        default=None,
        allow_null=True,
        help_text="the state for the guarded row, one of `row.states` of `GET {name}/lock`; by default the guard's own"
        " choice",
    ),
}
_LIMITS = {
    "text": _text("part of the name"),
    "name": _text("the whole name; also that of a tenant", 420),
    "offset": _number(0, 10**9, 0, _NEXT),
    "limit": _number(1, 200, 50),
}
_SHARE = {
    "share": serializers.FloatField(
        min_value=0.000001,
        max_value=1,
        help_text="the share of its limit that is in force: more than 0, at most 1, which is all of it",
    ),
    **_REASON,
}
_PAUSE = {
    "seconds": serializers.FloatField(
        min_value=1,
        max_value=LONGEST_PAUSE,
        help_text="how long, from now on: 1 second to a week; replaces any other pause",
    ),
    **_REASON,
}
_MEMBER = {
    "member": serializers.CharField(
        max_length=64,
        help_text="the fingerprint that `GET concurrency/{name}` shows; no other member loses a permit",
    ),
    **_REASON,
}
_PARKED = {
    "state": serializers.ChoiceField(STATES, default="", allow_blank=True, help_text="empty: all"),
    "text": _text("a message's id, a lock's name, or a part of the name of a lock or task"),
    "newest": serializers.BooleanField(default=False, help_text="`true`: the latest first"),
    "after": _number(0, 2**62, 0, _NEXT),
    "limit": _number(1, 500, 50),
}
_SWEEP = {
    "dry_run": serializers.BooleanField(default=True, help_text="`true`: only check; `false`: repair"),
    "prefix": _text("only locks whose names begin with it"),
}
_AUDIT = {
    "actor": _text("part of the actor's name"),
    "action": _text("the whole code of an action, such as `release`", 40),
    "name": _text("the name of a lock or limiter, or a part of it", 420),
    "since": AwareDateTimeField(default=None, allow_null=True, help_text="not before this time, in ISO 8601"),
    "before": AwareDateTimeField(default=None, allow_null=True, help_text="before this time"),
    "below": _number(1, 2**62, None, _NEXT),
    "limit": _number(1, 1000, 100),
}


# Answers that are more than one value of ``operations``


def _found(value: T | None, code: Code, sentence: str, **names: str) -> T:
    if value is None:
        raise Problem(404, code, sentence % names)
    return value


def _list_locks(state: str, order: str, **given: Any) -> Any:
    which, by, down = "live" if state == DEAD else state, order.removeprefix("-"), order.startswith("-")
    query: Any = {"which": which, "order": by, "descending": down, **given}
    page = operations.list_locks(Query(**query), dead=state == DEAD)
    return {**to_plain(page), "counts": operations.count_locks()}


def _get_lock(name: str) -> Any:
    found = operations.get_lock(name)
    if found.lock is None or found.lock.state is LockState.ORPHANED:
        raise Problem(404, "not_locked", " ".join(map(str, found.explanation)))
    parts = {"row": found.row, "explanation": found.explanation, "messages": found.parked, "history": found.history}
    return {**to_plain(found.lock), **parts}


def _list_limits(name: str, **given: Any) -> Any:
    return list_limits(name=name or None, **given)


def _get_limit(name: str) -> Any:
    found = get_limit(name)
    limit = _found(found.limit, "unknown_limiter", _("No rate limit %(name)r is known."), name=name)
    return {**to_plain(limit), "tenants_seen": found.tenants, "history": found.history}


def _get_permits(name: str) -> Any:
    sentence = _("No permit of %(name)r is taken.")
    return _found(get_permits(name), "unknown_limiter", sentence, name=name)


def _get_message(task_id: str) -> Any:
    sentence = _("No message %(id)r is parked.")
    return _found(find_parked(task_id), "unknown_message", sentence, id=task_id)


def _list_runs(limit: int) -> Any:
    return {"runs": operations.sweep_runs(limit), "age": operations.last_sweep_age()}


def _get_run(number: str) -> Any:
    known = number.isascii() and number.isdecimal() and len(number) <= 18
    run = find_sweep_run(int(number)) if known else None
    return _found(run, "unknown_run", _("No run %(number)s of the sweep is recorded."), number=number)


def _sweep(**given: Any) -> Any:
    return {"report": operations.sweep(longest=MAX_SECONDS_IN_REQUEST, **given)}


def _list_acts(below: int | None, limit: int, **given: Any) -> Any:
    return list_acts(ActQuery(**given), below=below, limit=limit)


# The table

_VIEW_LOCKS = ("tasklock.view_lock",)
_RELEASE_LOCKS = (*_VIEW_LOCKS, "tasklock.release_lock")  # who acts may look, because answers show the lock
_VIEW_LIMITS = ("tasklock.view_ratelimit",)
_CHANGE_LIMITS = (*_VIEW_LIMITS, "tasklock.change_ratelimit")
_VIEW_MESSAGES = ("tasklock.view_parkedmessage",)
_CHANGE_MESSAGES = (*_VIEW_MESSAGES, "tasklock.change_parkedmessage")
_VIEW_AUDIT = ("tasklock.view_auditentry",)

_CANNOT_LIST: tuple[int, Code] = (501, "cannot_list")
_NO_LOCK: Mapping[str, tuple[int, Code]] = {
    Outcome.NOT_HELD: (404, "not_locked"),
    Outcome.CHANGED_HANDS: (409, "changed_hands"),
}
_NO_LIMIT: Mapping[str, tuple[int, Code]] = {
    LimitOutcome.UNKNOWN: (404, "unknown_limiter"),
    LimitOutcome.NOT_HELD: (404, "no_permit"),
    LimitOutcome.NOT_PAUSED: (404, "not_paused"),
}
_NO_MESSAGE: Mapping[str, tuple[int, Code]] = {
    ParkedOutcome.UNKNOWN: (404, "unknown_message"),
    ParkedOutcome.REFUSED: (409, "not_done"),
}


def _limit_act(name: str, path: str, about: str, call: Callable[..., Any], **more: Any) -> EndPoint:
    return EndPoint(
        name, "POST", path, about, _CHANGE_LIMITS, call,
        **{"fields": _REASON, "clean": clean_limiter_name, "refused": _CANNOT_LIST, "failures": _NO_LIMIT, **more},
    )  # fmt: skip


def _message_act(name: str, path: str, about: str, call: Callable[..., Any]) -> EndPoint:
    return EndPoint(name, "POST", path, about, _CHANGE_MESSAGES, call, _REASON, failures=_NO_MESSAGE)


END_POINTS = (
    EndPoint("locks", "GET", "locks", "locks, page by page, and how many there are of each kind",
             _VIEW_LOCKS, _list_locks, _LOCKS, refused=_CANNOT_LIST),
    EndPoint("lock", "GET", "{name}/lock", "one lock with all its details; 404 while it is free",
             _VIEW_LOCKS, _get_lock, clean=bare_name),
    EndPoint("release-lock", "POST", "{name}/release-lock", "release the lock by force",
             _RELEASE_LOCKS, operations.release_lock, _RELEASE, clean=bare_name, refused=(400, "invalid_row_state"),
             failures=_NO_LOCK, if_match=True),
    EndPoint("ask-release", "POST", "{name}/ask-release",
             "ask its holder to give it back: it notices at its next heartbeat or `ensure_held()`",
             _RELEASE_LOCKS, operations.ask_release, _REASON, clean=bare_name, refused=(409, "nobody_to_ask"),
             failures=_NO_LOCK, if_match=True),
    EndPoint("waiters", "GET", "{name}/waiters", "its first fifty waiters in processes, the longest waiting first",
             _VIEW_LOCKS, operations.list_waiters, clean=bare_name),
    # After those of locks, as a lock may be called "limits/x"; no path here ends like one of a lock.
    EndPoint("limits", "GET", "limits", "[rate limits](limits.md), page by page, with their state",
             _VIEW_LIMITS, _list_limits, _LIMITS, refused=_CANNOT_LIST),
    _limit_act("reset-limit", "limits/{name}/reset", "remove usage, bookings, a pause and a lowered limit",
               reset_limit),
    _limit_act("change-limit", "limits/{name}/change", "set the share of the limit that is in force",
               change_limit, fields=_SHARE),
    _limit_act("pause-limit", "limits/{name}/pause", "pause all callers for some seconds",
               pause_limit, fields=_PAUSE),
    _limit_act("resume-limit", "limits/{name}/resume", "end a pause, whatever its cause",
               resume_limit),
    EndPoint("limit", "GET", "limits/{name}",
             "one of them, its tenants, and operators' actions on it; 404 if it is not known",
             _VIEW_LIMITS, _get_limit, clean=clean_limiter_name, refused=_CANNOT_LIST),
    EndPoint("concurrency", "GET", "concurrency", "concurrency limiters that have members, the first hundred by name",
             _VIEW_LIMITS, list_permits, {"text": _text("part of the name")}, refused=_CANNOT_LIST),
    _limit_act("release-permit", "concurrency/{name}/release", "release the permit of one member by force",
               release_permit, fields=_MEMBER, clean=bare_name),
    EndPoint("permits", "GET", "concurrency/{name}", "its members; 404 while it has none",
             _VIEW_LIMITS, _get_permits, clean=bare_name, refused=_CANNOT_LIST),
    EndPoint("parked", "GET", "parked",
             "[parked messages](queue.md) over all locks, page by page, each with what it waits for",
             _VIEW_MESSAGES, lambda **given: list_parked(ParkedQuery(**given)), _PARKED),
    _message_act("publish-parked", "parked/{task_id}/publish",
                 "publish it now, if its lock is free and it is its turn", publish_parked),
    _message_act("requeue-parked", "parked/{task_id}/requeue", "let a dead message wait for its lock again",
                 requeue_parked),
    _message_act("discard-parked", "parked/{task_id}/discard", "end it as revoked, without running it",
                 discard_parked),
    EndPoint("parked-message", "GET", "parked/{task_id}", "one of them; 404 if there is none",
             _VIEW_MESSAGES, _get_message),
    EndPoint("sweep", "POST", "sweep", "[sweep](operate.md#the-sweep) once, or only check",
             _RELEASE_LOCKS, _sweep, _SWEEP, refused=(400, "invalid_sweep")),
    EndPoint("sweeps", "GET", "sweeps", "the last runs of the sweep, and the age of the last complete sweep",
             _VIEW_LOCKS, _list_runs, {"limit": _number(1, 200, 20)}),
    EndPoint("sweep-run", "GET", "sweeps/{number}", "one run with its counts; 404 if it is not recorded any more",
             _VIEW_LOCKS, _get_run),
    EndPoint("audit", "GET", "audit", "the audit trail, page by page, the latest first",
             _VIEW_AUDIT, _list_acts, _AUDIT),
)  # fmt: skip
"""All of them, in the order in which their paths are matched."""
