"""The one view: it reads the request, calls the function of its end point, and answers with JSON that is not cached."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from difflib import get_close_matches
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.exceptions import RequestDataTooBig
from django.utils.cache import add_never_cache_headers
from django.utils.translation import gettext as _
from rest_framework import serializers
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import ParseError
from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.parsers import FormParser, JSONParser
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.settings import api_settings
from rest_framework.views import APIView

from django_tasklock.conf import get_settings
from django_tasklock.db.transactions import outside_transactions
from django_tasklock.operations import Actor, to_plain
from django_tasklock.rest.access import ApiKeyAuthentication, MayUse, Throttle
from django_tasklock.rest.problems import Problem, answer_exception, as_problem
from django_tasklock.rest.table import END_POINTS, EndPoint
from django_tasklock.texts import printable


class OnlyJSON(DefaultContentNegotiation):
    """Answers with JSON whatever the Accept header says, so that an operator's ``curl`` or browser never gets a 406."""

    def select_renderer(self, request: Request, renderers: list[Any], format_suffix: str | None = None) -> Any:
        """Return the only renderer."""
        return renderers[0], renderers[0].media_type


class EndPointView(APIView):
    """One end point of the table."""

    point: EndPoint = END_POINTS[0]
    """Which; given to ``as_view``."""

    permission_classes = (MayUse,)
    throttle_classes = (Throttle,)
    renderer_classes = (JSONRenderer,)
    parser_classes = (JSONParser, FormParser)
    content_negotiation_class = OnlyJSON
    versioning_class = None  # a version, if any, is in the project's URL prefix
    schema = None  # not in the OpenAPI document of a project that makes one

    @classmethod
    def as_view(cls, **initkwargs: Any) -> Any:
        """Return the view, exempt from ``ATOMIC_REQUESTS``: a row's revoked claim must be committed before its lock is
        released.
        """
        return outside_transactions(super().as_view(**initkwargs))

    def get(self, request: Request, **route: Any) -> Response:
        """Answer a request to read."""
        return self._answer(request.query_params, route)

    def post(self, request: Request, **route: Any) -> Response:
        """Do what was requested, and answer with the result."""
        acting: dict[str, Any] = {"by": self._actor()}
        if self.point.if_match:
            acting["fingerprint"] = _expected_fingerprint(request)
        return self._answer(self._read_body(), route, **acting)

    def _answer(self, data: Any, route: Mapping[str, Any], **acting: Any) -> Response:
        point = self.point
        fields = _Fields(point.fields, data)
        fields.is_valid(raise_exception=True)
        with as_problem(400, "invalid_name"):
            subject = [point.clean(route[point.subject])] if point.subject else []
        with as_problem(*point.refused):
            found = point.call(*subject, **fields.validated_data, **acting)
        if point.failures and (failure := point.failures.get(found.outcome)):
            status, code = failure
            stale = status == 409 and acting.get("fingerprint") is not None
            raise Problem(412 if stale else status, code, str(found))
        plain = to_plain(found)
        headers = {"ETag": f'"{plain["fingerprint"]}"'} if "fingerprint" in plain else {}
        return Response(plain, headers=headers)

    def _read_body(self) -> Any:
        """Return the body; one that is too long is not read."""
        # REST framework 3.16 reads on beyond the limit.
        length: str = self.request.META.get("CONTENT_LENGTH") or "0"
        max_length: Any = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
        if max_length is not None and length.isdecimal() and int(length) > max_length:
            raise RequestDataTooBig
        try:
            data = self.request.data
        except RecursionError as error:
            raise ParseError(_("The JSON is nested too deeply.")) from error
        if isinstance(data, Mapping):
            _refuse_unknown_fields(data, self.point.fields)
        return data

    def _actor(self) -> Actor:
        """Return the actor for the audit trail, with an id only for users of the user model."""
        user = self.request.user
        name = user.get_username() if hasattr(user, "get_username") else str(user)
        return Actor(name, user.pk if isinstance(user, get_user_model()) else None)

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
        """Let nobody store it: the state is outdated a moment later, and it is for this caller alone.

        ``no-store`` does not suffice: earlier releases of Django keep such an answer in the cache of a whole site,
        and give it to callers without a key.
        """
        response = super().finalize_response(request, response, *args, **kwargs)
        add_never_cache_headers(response)
        return response


class _Fields(serializers.Serializer):
    """Validates the fields of an end point."""

    def __init__(self, fields: Mapping[str, serializers.Field], data: Any) -> None:
        super().__init__(data=data)
        self._of_point = fields

    def get_fields(self) -> dict[str, serializers.Field]:
        """Return copies, which become part of this serializer."""
        return {name: deepcopy(field) for name, field in self._of_point.items()}


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


def _expected_fingerprint(request: Request) -> str | None:
    """Return the fingerprint of ``If-Match``; ``None`` if it is absent or ``*``, which match any holder.

    The tag identifies a hold, not the bytes of an answer, so ``W/"..."``, as compressing proxies write it, is equal to
    ``"..."``. Raises ``ParseError`` for several tags, since a release is meant for one holder.
    """
    given = request.META.get("HTTP_IF_MATCH")
    if given is None or given.strip() == "*":
        return None
    if "," in given:
        raise ParseError(_("If-Match must have one tag: the ETag of the lock."))
    return str(given).strip().removeprefix("W/").strip('"')
