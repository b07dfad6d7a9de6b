"""Error answers, all of the form ``{"code": ..., "detail": <a sentence>}``."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

from django.core.exceptions import RequestDataTooBig, SuspiciousOperation
from django.db import InterfaceError, OperationalError
from django.utils.translation import gettext_lazy as _
from rest_framework.exceptions import APIException, ErrorDetail, NotAuthenticated, ParseError
from rest_framework.response import Response
from rest_framework.views import exception_handler

from django_tasklock.authentication import IN_QUERY
from django_tasklock.conf import get_settings
from django_tasklock.exceptions import BackendUnavailable, TaskLockError, TransactionOpen

logger = logging.getLogger("django_tasklock")

RETRY_AFTER = 5  # seconds: a failover takes a few, and clients should not overload a store that has just come back


Code = Literal[
    "cannot_list",
    "changed_hands",
    "database_unavailable",
    "invalid",
    "invalid_name",
    "invalid_row_state",
    "invalid_sweep",
    "no_permit",
    "nobody_to_ask",
    "not_done",
    "not_locked",
    "not_paused",
    "store_unavailable",
    "too_large",
    "unknown_field",
    "unknown_limiter",
    "unknown_message",
    "unknown_run",
]
"""Our error codes; ``invalid`` and others are REST framework's. docs/rest.md lists them all."""


class Problem(APIException):
    """An error answer: the status, a code for programs, a sentence for people."""

    def __init__(self, status: int, code: Code, detail: Any) -> None:
        super().__init__(detail, code)
        self.status_code = status
        if status == 503:
            self.wait = RETRY_AFTER  # read by REST framework: the Retry-After header


@contextmanager
def as_problem(status: int, code: Code) -> Iterator[None]:
    """Raise a ``TaskLockError`` of the block as this problem, except outages and open transactions."""
    try:
        yield
    except (BackendUnavailable, TransactionOpen):
        raise
    except TaskLockError as error:
        raise Problem(status, code, str(error)) from error


def answer_exception(error: Exception, context: Mapping[str, Any]) -> Response | None:
    """Convert an exception of our views to an answer without connection details; ``None`` for a bug."""
    if isinstance(error, BackendUnavailable):
        error = _unavailable(error, context)
    elif isinstance(error, OperationalError | InterfaceError):
        logger.warning("REST: the database does not answer", exc_info=error)
        error = Problem(503, "database_unavailable", _("The database does not answer: nothing was released."))
    elif isinstance(error, RequestDataTooBig):
        error = Problem(413, "too_large", _("The body is longer than this server accepts."))
    elif isinstance(error, SuspiciousOperation):  # too many fields; Django itself would answer with HTML
        error = ParseError(_("The request cannot be read: it has too many fields, or is malformed."))
    elif isinstance(error, NotAuthenticated) and _key_in_query(context["request"]):
        error.detail = ErrorDetail(
            _("A key in the query string is not accepted here: send 'Authorization: Api-Key <key>'."), error.detail.code
        )
    response = exception_handler(error, context)
    if response is None:
        return None
    detail = response.data.get("detail") if isinstance(response.data, dict) else None
    if isinstance(detail, ErrorDetail):
        response.data = {"code": detail.code, "detail": detail}
    else:
        response.data = {"code": getattr(error, "default_code", "error"), "detail": _join_errors(response.data)}
    return response


def _unavailable(error: BackendUnavailable, context: Mapping[str, Any]) -> Problem:
    text = _("The lock store does not answer, so the state of the locks is not known.")
    if error.doubt and context["request"].method == "POST":
        text = _("The lock store does not answer. The request may have been carried out nevertheless: check.")
    return Problem(503, "store_unavailable", text)


def _key_in_query(request: Any) -> bool:
    """Return whether the query string has a key that was ignored: one that is read is either valid or refused."""
    return IN_QUERY in request.query_params and bool(get_settings().API_KEYS)


def _join_errors(found: Any) -> str:
    """Join the errors of a serializer in one line: ``limit: A valid integer is required.``"""
    if isinstance(found, Mapping):
        return " ".join(
            _join_errors(errors) if field in ("non_field_errors", "detail") else f"{field}: {_join_errors(errors)}"
            for field, errors in found.items()
        )
    if isinstance(found, list | tuple):
        return " ".join(_join_errors(errors) for errors in found)
    return str(found)
