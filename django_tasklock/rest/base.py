"""The base class of all views: authentication, parsing of requests, and JSON answers that are not cached."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, TypeVar

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.exceptions import RequestDataTooBig
from django.db import connections, transaction
from django.utils.translation import gettext as _
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import ParseError
from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.parsers import FormParser, JSONParser
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.serializers import Serializer
from rest_framework.settings import api_settings
from rest_framework.views import APIView

from django_tasklock.conf import get_settings
from django_tasklock.operations import Actor
from django_tasklock.rest import access, schema
from django_tasklock.rest.authentication import ApiKeyAuthentication
from django_tasklock.rest.problems import Problem, answer_exception
from django_tasklock.rest.serializers import AskSerializer
from django_tasklock.texts import printable

S = TypeVar("S", bound=Serializer)


class OnlyJSON(DefaultContentNegotiation):
    """Answers with JSON whatever the Accept header says, so that an operator's ``curl`` or browser never gets a 406."""

    def select_renderer(self, request: Request, renderers: list[Any], format_suffix: str | None = None) -> Any:
        """Return the only renderer."""
        return renderers[0], renderers[0].media_type


class TaskLockView(APIView):
    """The base of all views: closed without ``permission``, with one format for errors, and without caching."""

    schema = schema.TaskLockSchema()
    permission: tuple[str, ...]
    throttle_scope: str
    operation_id: str
    body_serializer: type[Serializer] = AskSerializer
    """The serializer of a POST body."""
    tag = "locks"

    permission_classes = (access.MayUseLocks,)
    throttle_classes = (access.LockThrottle,)
    renderer_classes = (JSONRenderer,)
    parser_classes = (JSONParser, FormParser)
    content_negotiation_class = OnlyJSON
    versioning_class = None  # a version, if any, is in the project's URL prefix

    @classmethod
    def as_view(cls, **initkwargs: Any) -> Any:
        """Return the view, exempt from ``ATOMIC_REQUESTS``: a row's revoked claim must be committed before its lock is
        released.
        """
        view = super().as_view(**initkwargs)
        for alias in connections:
            transaction.non_atomic_requests(using=alias)(view)
        return view

    def get_authenticators(self) -> list[BaseAuthentication]:
        """Return the authenticator of our API keys, if there are any, then those of the project."""
        keys = [ApiKeyAuthentication] if get_settings().API_KEYS else []
        return [kind() for kind in (*keys, *api_settings.DEFAULT_AUTHENTICATION_CLASSES)]

    def get_authenticate_header(self, request: Request) -> str:
        """Return our challenge and that of the project's first class. If both are empty, 401 becomes 403."""
        kinds = self.get_authenticators()[: 2 if get_settings().API_KEYS else 1]
        return ", ".join(challenge for kind in kinds if (challenge := kind.authenticate_header(request)))

    def get_exception_handler(self) -> Any:
        """Return our handler in place of the project's."""
        return answer_exception

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        """Add ``no-store``, because the state is outdated a moment later."""
        response = super().finalize_response(request, response, *args, **kwargs)
        response["Cache-Control"] = "no-store"
        return response

    def read_query(self, kind: type[S]) -> S:
        """Validate the query parameters and return their serializer."""
        serializer: S = kind(data=self.request.query_params)
        serializer.is_valid(raise_exception=True)
        return serializer

    def read_body(self) -> dict[str, Any]:
        """Return the validated body; a body that is too long is not read."""
        length: str = self.request.META.get("CONTENT_LENGTH") or "0"
        max_length: Any = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
        if max_length is not None and length.isdecimal() and int(length) > max_length:
            raise RequestDataTooBig
        try:
            data = self.request.data
            serializer = self.body_serializer(data=data)
        except RecursionError as error:
            raise ParseError(_("The JSON is nested too deeply.")) from error
        if isinstance(data, Mapping):
            _refuse_unknown_fields(data, serializer.fields)
        serializer.is_valid(raise_exception=True)
        return dict(serializer.validated_data)

    def actor(self) -> Actor:
        """Return the actor for the audit trail, with an id only for users of the user model."""
        user = self.request.user
        name = user.get_username() if hasattr(user, "get_username") else str(user)
        return Actor(name, user.pk if isinstance(user, get_user_model()) else None)


def _refuse_unknown_fields(given: Mapping[str, Any], fields: Iterable[str]) -> None:
    """Raise a ``Problem`` for an unknown field: a misspelt ``row_state`` must not release with the default state."""
    known = list(fields)
    for name in given:
        if name not in known:
            matches = get_close_matches(str(name), known, n=1)
            hint = _("did you mean %(near)r?") if matches else _("known are %(known)s.")
            values = {"near": matches[0] if matches else "", "known": ", ".join(known)}
            text = _("There is no field %(name)s:") % {"name": repr(printable(name, 60))}
            raise Problem(400, "unknown_field", f"{text} {hint % values}")
