"""The end points. Each one reads the request, asks ``operations``, and answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.db import connections, transaction
from django.utils.translation import gettext as _
from drf_spectacular.utils import extend_schema
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import ParseError
from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.parsers import FormParser, JSONParser
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import Serializer
from rest_framework.settings import api_settings
from rest_framework.views import APIView

from django_tasklock import operations
from django_tasklock.conf import get_settings
from django_tasklock.exceptions import BackendUnavailable, TaskLockError, TransactionOpen
from django_tasklock.names import clean
from django_tasklock.operations import Actor, LockState, Outcome, Result
from django_tasklock.rest import permissions, problems, schema
from django_tasklock.rest.authentication import ApiKeyAuthentication
from django_tasklock.rest.locks import parameters, preconditions, serializers
from django_tasklock.rest.throttling import LockThrottle
from django_tasklock.texts import shown

__all__ = ["AskReleaseView", "Door", "LockView", "LocksView", "ReleaseLockView"]


class OnlyJSON(DefaultContentNegotiation):
    """JSON, whatever is accepted: an operator's ``curl`` or browser gets an answer, not a 406."""

    def select_renderer(self, request: Request, renderers: list[Any], format_suffix: str | None = None) -> Any:
        """The only one."""
        return renderers[0], renderers[0].media_type


class Door(APIView):
    """What all of them have in common: closed unless ``permission`` is there, one shape of problems, no caching."""

    schema = schema.DoorSchema()
    permission: tuple[str, ...]
    throttle_scope: str
    operation_id: str
    tag = "locks"

    permission_classes = (permissions.MayUseLocks,)
    throttle_classes = (LockThrottle,)
    renderer_classes = (JSONRenderer,)
    parser_classes = (JSONParser, FormParser)
    content_negotiation_class = OnlyJSON
    versioning_class = None  # the project's prefix has it, if anything

    @classmethod
    def as_view(cls, **initkwargs: Any) -> Any:
        """Outside ``ATOMIC_REQUESTS``: the row must be fenced for all to see before the lock is given away."""
        view = super().as_view(**initkwargs)
        for alias in connections:
            transaction.non_atomic_requests(using=alias)(view)
        return view

    def get_authenticators(self) -> list[BaseAuthentication]:
        """Our keys, if there are any, then whatever the project has configured."""
        keys = [ApiKeyAuthentication] if get_settings().API_KEYS else []
        return [kind() for kind in (*keys, *api_settings.DEFAULT_AUTHENTICATION_CLASSES)]

    def get_authenticate_header(self, request: Request) -> str:
        """Ours, and what the project's first class says, as everywhere in REST framework. Empty means 403, not 401."""
        kinds = self.get_authenticators()[: 2 if get_settings().API_KEYS else 1]
        return ", ".join(said for kind in kinds if (said := kind.authenticate_header(request)))

    def get_exception_handler(self) -> Any:
        """Ours: the project's knows other shapes."""
        return problems.answer

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        """Nothing of it is to be kept by anybody: it was true a moment ago."""
        response = super().finalize_response(request, response, *args, **kwargs)
        response["Cache-Control"] = "no-store"
        return response

    def named(self, name: str) -> str:
        """The lock's name without the key prefix; ``InvalidName`` for what can be none."""
        try:
            return clean(name, get_settings().KEY_PREFIX)
        except TaskLockError as error:
            raise problems.InvalidName(str(error)) from error

    def given(self, kind: type[Serializer]) -> dict[str, Any]:
        """The body, checked: one that is too long is not read."""
        length: str = self.request.META.get("CONTENT_LENGTH") or "0"
        most: Any = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
        if most is not None and length.isdecimal() and int(length) > most:
            raise problems.TooLarge
        try:
            data = self.request.data
            taken = kind(data=data)
        except RecursionError as error:
            raise ParseError(_("The JSON is nested too deeply.")) from error
        if isinstance(data, Mapping):
            _no_others(data, taken.fields)
        taken.is_valid(raise_exception=True)
        return dict(taken.validated_data)

    def actor(self) -> Actor:
        """Who acts, for the audit trail. Only a row of the user table has an id there."""
        user = self.request.user
        name = user.get_username() if hasattr(user, "get_username") else str(user)
        return Actor(name, user.pk if isinstance(user, get_user_model()) else None)

    def done(self, result: Result, expected: str | None) -> Response:
        """What came of an act, or the problem."""
        if result.outcome is Outcome.NOT_HELD:
            raise _not_locked(result.name)
        if result.outcome is Outcome.CHANGED_HANDS:
            text = _("Lock %(name)r has changed hands: whoever has it now was left alone.") % {"name": result.name}
            raise (problems.Interrupted if expected is None else problems.ChangedHands)(text)
        return Response(serializers.ResultSerializer(serializers.result(result)).data)


@extend_schema(
    summary="Locks, page by page",
    **schema.answers(serializers.LockPageSerializer, 501, parameters=[parameters.QuerySerializer]),
)
class LocksView(Door):
    """``GET locks``: live ones unless ``state`` says otherwise."""

    permission = permissions.VIEW
    throttle_scope = "tasklock_view"
    operation_id = "locks_list"

    def get(self, request: Request, **kwargs: Any) -> Response:
        """A page, and how many there are of each kind."""
        taken = parameters.QuerySerializer(data=request.query_params)
        taken.is_valid(raise_exception=True)
        try:
            page, counts = operations.list_locks(taken.query()), operations.count_locks()
        except BackendUnavailable:
            raise
        except TaskLockError as error:
            raise problems.CannotList(str(error)) from error
        data = {
            "locks": [serializers.lock(view) for view in page.locks],
            "total": page.total,
            "next": page.next,
            "counts": {
                "live": counts.live,
                "expiring": counts.expiring,
                "no_expiry": counts.unending,
                "orphaned": counts.lapsed,
            },
        }
        return Response(serializers.LockPageSerializer(data).data)


@extend_schema(
    summary="One lock",
    **schema.answers(
        serializers.LockDetailSerializer,
        404,
        parameters=[schema.NAME, schema.IF_NONE_MATCH, schema.ETAG],
    ),
)
class LockView(Door):
    """``GET {name}/lock``: everything that is known of it; 404 while nobody has it."""

    permission = permissions.VIEW
    throttle_scope = "tasklock_view"
    operation_id = "lock_read"

    def get(self, request: Request, name: str, **kwargs: Any) -> Response:
        """The lock, or 304 while the holder is the one that the caller knows."""
        found = operations.get_lock(self.named(name))
        if found.lock is None or found.lock.state is LockState.ORPHANED:
            raise _not_locked(found.name, found.explanation)
        fingerprint = found.lock.info.fingerprint
        headers = {"ETag": preconditions.etag(fingerprint)}
        if preconditions.known(request, fingerprint):
            return Response(status=304, headers=headers)
        return Response(serializers.LockDetailSerializer(serializers.detail(found)).data, headers=headers)


@extend_schema(
    summary="Release a lock by force",
    request=parameters.ReleaseSerializer,
    **schema.answers(serializers.ResultSerializer, 404, 409, 412, 415, parameters=[schema.NAME, schema.IF_MATCH]),
)
class ReleaseLockView(Door):
    """``POST {name}/release-lock``: take it from its holder. A guarded row is fenced first."""

    permission = permissions.RELEASE
    throttle_scope = "tasklock_release"
    operation_id = "lock_release"

    def post(self, request: Request, name: str, **kwargs: Any) -> Response:
        """What was released; nothing is done if the lock changed hands."""
        expected = preconditions.expected(request)
        given = self.given(parameters.ReleaseSerializer)
        bare = self.named(name)
        try:
            result = operations.release_lock(
                bare, by=self.actor(), reason=given["reason"], fingerprint=expected, row_state=given["row_state"]
            )
        except (BackendUnavailable, TransactionOpen):
            raise
        except TaskLockError as error:
            raise problems.InvalidState(str(error)) from error
        return self.done(result, expected)


@extend_schema(
    summary="Ask the holder to give a lock back",
    request=parameters.AskSerializer,
    **schema.answers(serializers.ResultSerializer, 404, 409, 412, 415, parameters=[schema.NAME, schema.IF_MATCH]),
)
class AskReleaseView(Door):
    """``POST {name}/ask-release``: the holder learns of it at its next heartbeat, and stops where it can."""

    permission = permissions.RELEASE
    throttle_scope = "tasklock_release"
    operation_id = "lock_ask_release"

    def post(self, request: Request, name: str, **kwargs: Any) -> Response:
        """That it was asked. The lock is still held."""
        expected = preconditions.expected(request)
        given = self.given(parameters.AskSerializer)
        bare = self.named(name)
        try:
            result = operations.ask_to_release(bare, by=self.actor(), reason=given["reason"], fingerprint=expected)
        except BackendUnavailable:
            raise
        except TaskLockError as error:
            raise problems.NobodyToAsk(str(error)) from error
        return self.done(result, expected)


def _no_others(given: Mapping[str, Any], fields: Iterable[str]) -> None:
    """Raise for a field that is none: a ``row_state`` that is misspelt is no release that leaves it open."""
    known = list(fields)
    for name in given:
        if name not in known:
            near = get_close_matches(str(name), known, n=1)
            hint = _("did you mean %(near)r?") if near else _("known are %(known)s.")
            values = {"near": near[0] if near else "", "known": ", ".join(known)}
            text = _("There is no field %(name)s:") % {"name": repr(shown(name, 60))}
            raise problems.UnknownField(f"{text} {hint % values}")


def _not_locked(name: str, explanation: Any = ()) -> problems.NotLocked:
    """With what is known of a lock that is free."""
    said = " ".join(str(sentence) for sentence in explanation)
    return problems.NotLocked(said or _("Nobody has lock %(name)r.") % {"name": name})
