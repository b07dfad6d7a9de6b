"""What all views share: who comes in, what is read of a request, and that answers are JSON which nobody keeps."""

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
from django_tasklock.rest.shapes import AskSerializer
from django_tasklock.texts import printable

S = TypeVar("S", bound=Serializer)


class OnlyJSON(DefaultContentNegotiation):
    """JSON, whatever is accepted: an operator's ``curl`` or browser gets an answer, not a 406."""

    def select_renderer(self, request: Request, renderers: list[Any], format_suffix: str | None = None) -> Any:
        """Return the only one."""
        return renderers[0], renderers[0].media_type


class Door(APIView):
    """What all of them have in common: closed unless ``permission`` is there, one shape of problems, no caching."""

    schema = schema.DoorSchema()
    permission: tuple[str, ...]
    throttle_scope: str
    operation_id: str
    body: type[Serializer] = AskSerializer
    """What is read of a POST."""
    tag = "locks"

    permission_classes = (access.MayUseLocks,)
    throttle_classes = (access.LockThrottle,)
    renderer_classes = (JSONRenderer,)
    parser_classes = (JSONParser, FormParser)
    content_negotiation_class = OnlyJSON
    versioning_class = None  # the project's prefix has it, if anything

    @classmethod
    def as_view(cls, **initkwargs: Any) -> Any:
        """Make the view run outside ``ATOMIC_REQUESTS``: the claim of the row must be revoked, for all to see, before
        the lock is given away.
        """
        view = super().as_view(**initkwargs)
        for alias in connections:
            transaction.non_atomic_requests(using=alias)(view)
        return view

    def get_authenticators(self) -> list[BaseAuthentication]:
        """Return the authenticator of our API keys, if there are any, then those that the project has configured."""
        keys = [ApiKeyAuthentication] if get_settings().API_KEYS else []
        return [kind() for kind in (*keys, *api_settings.DEFAULT_AUTHENTICATION_CLASSES)]

    def get_authenticate_header(self, request: Request) -> str:
        """Return ours, and what the project's first class says, as everywhere in REST framework. Empty means 403, not
        401.
        """
        kinds = self.get_authenticators()[: 2 if get_settings().API_KEYS else 1]
        return ", ".join(said for kind in kinds if (said := kind.authenticate_header(request)))

    def get_exception_handler(self) -> Any:
        """Return the handler that answers with our problems, not the project's."""
        return answer_exception

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        """Forbid whoever passes it on to keep it: it was true a moment ago."""
        response = super().finalize_response(request, response, *args, **kwargs)
        response["Cache-Control"] = "no-store"
        return response

    def read_query(self, kind: type[S]) -> S:
        """Check the parameters of a list. Return the serializer that has them."""
        taken: S = kind(data=self.request.query_params)
        taken.is_valid(raise_exception=True)
        return taken

    def read_body(self) -> dict[str, Any]:
        """Return the body, checked: one that is too long is not read."""
        length: str = self.request.META.get("CONTENT_LENGTH") or "0"
        most: Any = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
        if most is not None and length.isdecimal() and int(length) > most:
            raise RequestDataTooBig
        try:
            data = self.request.data
            taken = self.body(data=data)
        except RecursionError as error:
            raise ParseError(_("The JSON is nested too deeply.")) from error
        if isinstance(data, Mapping):
            _no_others(data, taken.fields)
        taken.is_valid(raise_exception=True)
        return dict(taken.validated_data)

    def actor(self) -> Actor:
        """Return who acts, for the audit trail. Only a row of the user table has an id there."""
        user = self.request.user
        name = user.get_username() if hasattr(user, "get_username") else str(user)
        return Actor(name, user.pk if isinstance(user, get_user_model()) else None)


def _no_others(given: Mapping[str, Any], fields: Iterable[str]) -> None:
    """Raise for a field that is none: a ``row_state`` that is misspelt is no release that leaves it open."""
    known = list(fields)
    for name in given:
        if name not in known:
            near = get_close_matches(str(name), known, n=1)
            hint = _("did you mean %(near)r?") if near else _("known are %(known)s.")
            values = {"near": near[0] if near else "", "known": ", ".join(known)}
            text = _("There is no field %(name)s:") % {"name": repr(printable(name, 60))}
            raise Problem(400, "unknown_field", f"{text} {hint % values}")
