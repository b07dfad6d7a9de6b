"""Everything that is not a success, in one shape: ``{"code": ..., "detail": <a sentence>}``."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from django.core.exceptions import RequestDataTooBig, SuspiciousOperation
from django.db import InterfaceError, OperationalError
from django.utils.translation import gettext_lazy as _
from rest_framework import status
from rest_framework.exceptions import APIException, ErrorDetail, NotAuthenticated, ParseError
from rest_framework.response import Response
from rest_framework.views import exception_handler

from django_tasklock.conf import get_settings
from django_tasklock.exceptions import BackendUnavailable
from django_tasklock.rest.authentication import IN_QUERY

__all__ = ["CannotList", "ChangedHands", "DatabaseUnavailable", "Interrupted", "InvalidName", "InvalidState",
           "NoPermit", "NobodyToAsk", "NotLocked", "StoreUnavailable", "TooLarge", "UnknownField", "UnknownLimiter",
           "answer"]  # fmt: skip

logger = logging.getLogger("django_tasklock")

RETRY_AFTER = 5  # seconds: a failover takes a few, and nobody should hammer a store that comes back


class InvalidName(APIException):
    """No lock can have this name."""

    status_code = status.HTTP_400_BAD_REQUEST
    default_code = "invalid_name"


class UnknownField(APIException):
    """The body has a field that is none."""

    status_code = status.HTTP_400_BAD_REQUEST
    default_code = "unknown_field"


class TooLarge(APIException):
    """The body is longer than ``DATA_UPLOAD_MAX_MEMORY_SIZE``."""

    status_code = status.HTTP_413_REQUEST_ENTITY_TOO_LARGE
    default_code = "too_large"
    default_detail = _("The body is longer than this server takes.")


class InvalidState(APIException):
    """The guarded row cannot be left in this state."""

    status_code = status.HTTP_400_BAD_REQUEST
    default_code = "invalid_row_state"


class NotLocked(APIException):
    """Nobody has this lock."""

    status_code = status.HTTP_404_NOT_FOUND
    default_code = "not_locked"


class UnknownLimiter(APIException):
    """Neither the settings nor the store know this limiter, or nobody has a permit of it."""

    status_code = status.HTTP_404_NOT_FOUND
    default_code = "unknown_limiter"


class NoPermit(APIException):
    """This member has no permit any more."""

    status_code = status.HTTP_404_NOT_FOUND
    default_code = "no_permit"


class Interrupted(APIException):
    """Another one took the lock between looking and acting: nothing was done."""

    status_code = status.HTTP_409_CONFLICT
    default_code = "changed_hands"


class NobodyToAsk(APIException):
    """The lock's value was put there by other means: no holder of ours would hear."""

    status_code = status.HTTP_409_CONFLICT
    default_code = "nobody_to_ask"


class ChangedHands(APIException):
    """Somebody else has the lock than ``If-Match`` names: nothing was done."""

    status_code = status.HTTP_412_PRECONDITION_FAILED
    default_code = "changed_hands"


class CannotList(APIException):
    """A plain cache knows a lock by its name only."""

    status_code = status.HTTP_501_NOT_IMPLEMENTED
    default_code = "cannot_list"


class StoreUnavailable(APIException):
    """The store of the locks does not answer."""

    status_code = status.HTTP_503_SERVICE_UNAVAILABLE
    default_code = "store_unavailable"
    default_detail = _("The store of the locks does not answer: nothing is known of them now.")
    wait = RETRY_AFTER  # read by REST framework: the Retry-After header


class DatabaseUnavailable(APIException):
    """The database of the guarded row does not answer: the lock stays with its holder."""

    status_code = status.HTTP_503_SERVICE_UNAVAILABLE
    default_code = "database_unavailable"
    default_detail = _("The database does not answer: nothing was released.")
    wait = RETRY_AFTER


def answer(error: Exception, context: Mapping[str, Any]) -> Response | None:
    """The exception handler of our views; ``None`` for what is a bug. No connection details are in it."""
    if isinstance(error, BackendUnavailable):
        error = _unavailable(error, context)
    elif isinstance(error, OperationalError | InterfaceError):
        logger.warning("REST: the database does not answer", exc_info=error)
        error = DatabaseUnavailable()
    elif isinstance(error, RequestDataTooBig):
        error = TooLarge()
    elif isinstance(error, SuspiciousOperation):  # too many fields; else Django would answer, in HTML
        error = ParseError(_("What was sent cannot be taken: it has too many fields, or is malformed."))
    elif isinstance(error, NotAuthenticated) and _key_in_query(context["request"]):
        error.detail = ErrorDetail(
            _("A key in the query string is not taken here: send 'Authorization: Api-Key <key>'."), error.detail.code
        )
    response = exception_handler(error, context)
    if response is None:
        return None
    detail = response.data.get("detail") if isinstance(response.data, dict) else None
    if isinstance(detail, ErrorDetail):
        response.data = {"code": detail.code, "detail": detail}
    else:
        response.data = {"code": getattr(error, "default_code", "error"), "detail": _sentence(response.data)}
    return response


def _unavailable(error: BackendUnavailable, context: Mapping[str, Any]) -> StoreUnavailable:
    if error.doubt and context["request"].method == "POST":
        return StoreUnavailable(
            _("The store of the locks does not answer. It may have been done all the same: look again.")
        )
    return StoreUnavailable()


def _key_in_query(request: Any) -> bool:
    """A key that was not looked at: one that was would be known, or refused."""
    return IN_QUERY in request.query_params and bool(get_settings().API_KEYS)


def _sentence(found: Any) -> str:
    """Findings of a serializer in one line: ``limit: A valid integer is required.``"""
    if isinstance(found, Mapping):
        return " ".join(
            _sentence(said) if field in ("non_field_errors", "detail") else f"{field}: {_sentence(said)}"
            for field, said in found.items()
        )
    if isinstance(found, list | tuple):
        return " ".join(_sentence(said) for said in found)
    return str(found)
