"""Our part of the OpenAPI document, for drf-spectacular."""

from __future__ import annotations

from typing import Any

from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse

from django_tasklock.authentication import IN_QUERY
from django_tasklock.conf import get_settings
from django_tasklock.rest.authentication import scope_for
from django_tasklock.rest.shapes import ProblemSerializer

PLACES = {"tasklockKey", "tasklockKeyHeader", "tasklockKeyQuery"}


class DoorSchema(AutoSchema):
    """Set on our views, whatever ``DEFAULT_SCHEMA_CLASS`` is. The view names its operation."""

    def get_operation_id(self) -> str:
        """Return ``locks_list`` and the like: the path would give worse ones."""
        return str(self.view.operation_id)

    def get_tags(self) -> list[str]:
        """Return ``locks``, ``limits``, ``messages``, ``sweep`` or ``audit``."""
        return [self.view.tag]

    def get_request_serializer(self) -> Any:
        """Return the serializer by which the view reads a body."""
        return self.view.body

    def get_description(self) -> str:
        """Return the view's, and what a key needs: of keys OpenAPI 3.0 has no word for it."""
        return f"{super().get_description()}\n\nAn API key needs the scope `{scope_for(self.view.permission)}`."

    def get_extensions(self) -> dict[str, Any]:
        """Return the scope for programs: ``x-tasklock-scope``."""
        return {**super().get_extensions(), "x-tasklock-scope": scope_for(self.view.permission)}

    def get_auth(self) -> list[dict[str, Any]]:
        """Return a key in any of its places: drf-spectacular would ask for it in all of them."""
        found: list[dict[str, Any]] = []
        for ways in super().get_auth():
            found += [{name: ways[name]} for name in ways] if PLACES & ways.keys() else [ways]
        return found


class ApiKeyExtension(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """Where a key may stand. Either is enough."""

    target_class = "django_tasklock.rest.authentication.ApiKeyAuthentication"

    @property
    def name(self) -> list[str]:  # type: ignore[override]
        """One for each place."""
        return ["tasklockKey", "tasklockKeyHeader", *(["tasklockKeyQuery"] if get_settings().API_KEY_IN_QUERY else [])]

    def get_security_definition(self, auto_schema: AutoSchema) -> list[dict[str, Any]]:
        """Return the places of a key in the order of ``name``."""
        places = [
            {"type": "apiKey", "in": "header", "name": "Authorization", "description": "`Api-Key <key>`"},
            {"type": "apiKey", "in": "header", "name": "X-API-Key"},
            {"type": "apiKey", "in": "query", "name": IN_QUERY, "description": "Ends up in logs."},
        ]
        return places[: len(self.name)]


NAME = OpenApiParameter(
    "name", OpenApiTypes.STR, OpenApiParameter.PATH, description="The lock's name, with or without the key prefix."
)
"""The lock, in the path."""
LIMITER = OpenApiParameter(
    "name",
    OpenApiTypes.STR,
    OpenApiParameter.PATH,
    description="The limiter's name; a tenant's is `limiter:tenant:key`.",
)
"""The limiter, in the path."""
MESSAGE = OpenApiParameter(
    "task_id", OpenApiTypes.STR, OpenApiParameter.PATH, description="The message's id: its task's."
)
"""The parked message, in the path."""
RUN = OpenApiParameter(
    "number", OpenApiTypes.INT, OpenApiParameter.PATH, description="The run's number in the list of runs."
)
"""The run of the sweep, in the path."""
IF_MATCH = OpenApiParameter(
    "If-Match",
    OpenApiTypes.STR,
    OpenApiParameter.HEADER,
    description="The ETag that was shown with the lock: act only if that holder still has it.",
)
"""Act only on the holder with this fingerprint."""
IF_NONE_MATCH = OpenApiParameter(
    "If-None-Match",
    OpenApiTypes.STR,
    OpenApiParameter.HEADER,
    description="An ETag: 304 while that holder still has the lock.",
)
"""Answer only if the holder is another one."""
ETAG = OpenApiParameter(
    "ETag",
    OpenApiTypes.STR,
    OpenApiParameter.HEADER,
    response=[200, 304],
    description="The fingerprint of the holder's token, in quotes.",
)
"""The fingerprint of the holder."""
_CHALLENGE = OpenApiParameter(
    "WWW-Authenticate", OpenApiTypes.STR, OpenApiParameter.HEADER, response=[401], description="How to log in."
)
_RETRY_AFTER = OpenApiParameter(
    "Retry-After", OpenApiTypes.INT, OpenApiParameter.HEADER, response=[429, 503], description="Seconds."
)
_SENTENCES = {
    400: "What was sent cannot be understood, or has a field that is none (`unknown_field`); or no lock can have"
    " this name (`invalid_name`), no row this state"
    " (`invalid_row_state`).",
    401: "Nobody known: send a key or log in.",
    403: "Not permitted: a key lacks the scope that is named; or, of a session, the CSRF token is missing.",
    404: "Nobody has this lock (`not_locked`); no such limiter is known (`unknown_limiter`); that member has no permit"
    " (`no_permit`); the limiter is not paused (`not_paused`); no such message is parked (`unknown_message`); no such"
    " run is remembered (`unknown_run`).",
    409: "Another one took it while it was looked at: nothing was done (`changed_hands`). Of a message: why nothing was"
    " done (`not_done`).",
    412: "Somebody else has it than If-Match names: nothing was done (`changed_hands`).",
    413: "The body is longer than `DATA_UPLOAD_MAX_MEMORY_SIZE` (`too_large`).",
    415: "Neither JSON nor a form.",
    429: "Too often; or too many wrong keys from this address.",
    501: "The backend is a plain cache, which cannot list its keys and keeps no limits (`cannot_list`).",
    503: "The store of the locks does not answer (`store_unavailable`), or the database (`database_unavailable`).",
}


def answers(good: Any, *codes: int, **more: Any) -> dict[str, Any]:
    """Describe an end point: its answers, ``good`` and those of every one, and ``parameters``."""
    codes = (400, 401, 403, 429, 503, *codes, *([413] if 415 in codes else []))
    problems = {code: OpenApiResponse(ProblemSerializer, _SENTENCES[code]) for code in codes}
    if ETAG in more["parameters"]:
        problems[304] = OpenApiResponse(description="The holder that If-None-Match names still has it.")
    more["parameters"] = [*more["parameters"], _CHALLENGE, _RETRY_AFTER]
    return {"responses": {200: good, **dict(sorted(problems.items()))}, **more}
