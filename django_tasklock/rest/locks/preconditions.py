"""``ETag``, ``If-Match`` and ``If-None-Match``: the fingerprint of the holder that the caller has seen.

The tag identifies a hold, not the bytes of an answer, which change every second. So ``W/"..."``, as compressing
proxies and ``GZipMiddleware`` write it, is equal to ``"..."``.
"""

from __future__ import annotations

from django.utils.translation import gettext_lazy as _
from rest_framework.exceptions import ParseError
from rest_framework.request import Request


def etag(fingerprint: str) -> str:
    """Return the value of the ``ETag`` header."""
    return f'"{fingerprint}"'


def expected_fingerprint(request: Request) -> str | None:
    """Return the fingerprint of ``If-Match``; ``None`` if it is absent or ``*``, which match any holder.

    Raises ``ParseError`` for several tags, since a release is meant for one holder.
    """
    given = request.META.get("HTTP_IF_MATCH")
    if given is None or given.strip() == "*":
        return None
    tags = _tags(given)
    if len(tags) != 1:
        raise ParseError(_("If-Match must have one tag: the ETag of the lock."))
    return tags[0]


def is_not_modified(request: Request, fingerprint: str) -> bool:
    """Return whether ``If-None-Match`` has the fingerprint, so that the caller has seen this hold."""
    given = request.META.get("HTTP_IF_NONE_MATCH")
    return given is not None and (given.strip() == "*" or fingerprint in _tags(given))


def _tags(given: str) -> list[str]:
    return [tag.strip().removeprefix("W/").strip('"') for tag in given.split(",")]
