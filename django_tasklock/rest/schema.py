"""Our part of the OpenAPI document, generated with drf-spectacular."""

from __future__ import annotations

from typing import Any

from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse

from django_tasklock.authentication import IN_QUERY
from django_tasklock.conf import get_settings
from django_tasklock.rest.authentication import scope_for
from django_tasklock.rest.serializers import ProblemSerializer

KEY_SCHEMES = {"tasklockKey", "tasklockKeyHeader", "tasklockKeyQuery"}


class TaskLockSchema(AutoSchema):
    """The schema of our views, whatever ``DEFAULT_SCHEMA_CLASS`` is; the view has the operation's id."""

    def get_operation_id(self) -> str:
        """Return ids such as ``locks_list``; those derived from the paths would be unclear."""
        return str(self.view.operation_id)

    def get_tags(self) -> list[str]:
        """Return ``locks``, ``limits``, ``messages``, ``sweep`` or ``audit``."""
        return [self.view.tag]

    def get_request_serializer(self) -> Any:
        """Return the serializer of the view's body."""
        return self.view.body_serializer

    def get_description(self) -> str:
        """Return the view's description and the scope that a key needs: OpenAPI 3.0 has no scopes for API keys."""
        return f"{super().get_description()}\n\nAn API key needs the scope `{scope_for(self.view.permission)}`."

    def get_extensions(self) -> dict[str, Any]:
        """Return the scope in machine-readable form: ``x-tasklock-scope``."""
        return {**super().get_extensions(), "x-tasklock-scope": scope_for(self.view.permission)}

    def get_auth(self) -> list[dict[str, Any]]:
        """Return the ways to send a key as alternatives; drf-spectacular would require all of them at once."""
        found: list[dict[str, Any]] = []
        for schemes in super().get_auth():
            found += [{name: schemes[name]} for name in schemes] if KEY_SCHEMES & schemes.keys() else [schemes]
        return found


class ApiKeyExtension(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """The ways to send a key, each of which suffices."""

    target_class = "django_tasklock.rest.authentication.ApiKeyAuthentication"

    @property
    def name(self) -> list[str]:  # type: ignore[override]
        """One name for each way."""
        return ["tasklockKey", "tasklockKeyHeader", *(["tasklockKeyQuery"] if get_settings().API_KEY_IN_QUERY else [])]

    def get_security_definition(self, auto_schema: AutoSchema) -> list[dict[str, Any]]:
        """Return the ways to send a key, in the order of ``name``."""
        definitions = [
            {"type": "apiKey", "in": "header", "name": "Authorization", "description": "`Api-Key <key>`"},
            {"type": "apiKey", "in": "header", "name": "X-API-Key"},
            {"type": "apiKey", "in": "query", "name": IN_QUERY, "description": "Ends up in logs."},
        ]
        return definitions[: len(self.name)]


NAME = OpenApiParameter(
    "name", OpenApiTypes.STR, OpenApiParameter.PATH, description="The lock's name, with or without the key prefix."
)
"""The lock's name in the path."""
LIMITER = OpenApiParameter(
    "name",
    OpenApiTypes.STR,
    OpenApiParameter.PATH,
    description="The limiter's name; a tenant's is `limiter:tenant:key`.",
)
"""The limiter's name in the path."""
MESSAGE = OpenApiParameter(
    "task_id", OpenApiTypes.STR, OpenApiParameter.PATH, description="The message's id, which is that of its task."
)
"""The parked message's id in the path."""
RUN = OpenApiParameter(
    "number", OpenApiTypes.INT, OpenApiParameter.PATH, description="The run's number in the list of runs."
)
"""The sweep run's number in the path."""
IF_MATCH = OpenApiParameter(
    "If-Match",
    OpenApiTypes.STR,
    OpenApiParameter.HEADER,
    description="The ETag that was shown with the lock: act only if that holder still has it.",
)
"""Act only if the holder has this fingerprint."""
IF_NONE_MATCH = OpenApiParameter(
    "If-None-Match",
    OpenApiTypes.STR,
    OpenApiParameter.HEADER,
    description="An ETag: 304 while that holder still has the lock.",
)
"""Answer 304 if the holder has this fingerprint."""
ETAG = OpenApiParameter(
    "ETag",
    OpenApiTypes.STR,
    OpenApiParameter.HEADER,
    response=[200, 304],
    description="The fingerprint of the holder's token, in quotes.",
)
"""The fingerprint of the holder's token."""
_CHALLENGE = OpenApiParameter(
    "WWW-Authenticate", OpenApiTypes.STR, OpenApiParameter.HEADER, response=[401], description="How to log in."
)
_RETRY_AFTER = OpenApiParameter(
    "Retry-After", OpenApiTypes.INT, OpenApiParameter.HEADER, response=[429, 503], description="Seconds."
)
_DESCRIPTIONS = {
    400: "The request is malformed, or has an unknown field (`unknown_field`), a name that no lock can have"
    " (`invalid_name`), or a state that the row cannot have (`invalid_row_state`).",
    401: "Not authenticated: send a key or log in.",
    403: "Not permitted: a key lacks the scope that is named, or a session the CSRF token.",
    404: "The lock is not held (`not_locked`); there is no such limiter (`unknown_limiter`), permit (`no_permit`),"
    " pause (`not_paused`), parked message (`unknown_message`) or recorded run (`unknown_run`).",
    409: "The lock has got another holder meanwhile: nothing was done (`changed_hands`). For a message: why nothing was"
    " done (`not_done`).",
    412: "The lock has another holder than If-Match names: nothing was done (`changed_hands`).",
    413: "The body is longer than `DATA_UPLOAD_MAX_MEMORY_SIZE` (`too_large`).",
    415: "Neither JSON nor a form.",
    429: "Too many requests, or too many wrong keys from this address.",
    501: "The backend is a plain cache, which cannot list its keys and has no limits (`cannot_list`).",
    503: "The lock store (`store_unavailable`) or the database (`database_unavailable`) does not answer.",
}


def responses(success: Any, *codes: int, **more: Any) -> dict[str, Any]:
    """Return the keyword arguments of ``extend_schema``: the answers, ``success`` and errors, and ``parameters``."""
    codes = (400, 401, 403, 429, 503, *codes, *([413] if 415 in codes else []))
    problems = {code: OpenApiResponse(ProblemSerializer, _DESCRIPTIONS[code]) for code in codes}
    if ETAG in more["parameters"]:
        problems[304] = OpenApiResponse(description="The lock still has the holder that If-None-Match names.")
    more["parameters"] = [*more["parameters"], _CHALLENGE, _RETRY_AFTER]
    return {"responses": {200: success, **dict(sorted(problems.items()))}, **more}
