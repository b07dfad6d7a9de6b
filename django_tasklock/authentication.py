"""Authentication by API key: ``Authorization: Api-Key <key>`` or ``X-API-Key: <key>``. It needs no REST framework."""

from __future__ import annotations

import hashlib
import logging
import time
from typing import Any

from django.conf import settings as django_settings
from django.core.cache import cache
from django.http import HttpRequest, JsonResponse
from django.utils.translation import gettext_lazy as _

from django_tasklock.api_keys import ApiKey, find_key
from django_tasklock.conf import get_settings

SCHEME = "api-key"
IN_QUERY = "api_key"
"""The parameter of the query string with the key, where that is enabled."""
CHALLENGE = 'Api-Key realm="tasklock"'
"""The ``WWW-Authenticate`` header of a 401."""
WRONG_KEYS = 30
"""The number of wrong keys that one address may send in ``WINDOW`` seconds."""
WINDOW = 60

logger = logging.getLogger("django_tasklock")


class KeyRefused(Exception):
    """The request has an unknown key.

    ``retry_after``: the seconds for which its address has to wait, because it has sent too many; ``None``: it may
    retry.
    """

    def __init__(self, retry_after: int | None = None) -> None:
        super().__init__(_("This API key is not known here."))
        self.retry_after = retry_after


def authenticate(request: HttpRequest) -> ApiKey | None:
    """Return the key of a request; ``None`` if it has none, or if no keys are configured.

    ``Authorization`` comes first, then ``X-API-Key``, then the query string if ``TASKLOCK["API_KEY_IN_QUERY"]`` is set.
    A valid key is accepted however many wrong keys its address has sent. Raises ``KeyRefused`` for an unknown key.
    """
    settings = get_settings()
    given = _given(request, settings.API_KEY_IN_QUERY) if settings.API_KEYS else None
    if given is None:
        return None
    key = find_key(given, settings.api_keys)
    if key is None:
        raise KeyRefused(_count_wrong(request))
    return key


def refusal(request: HttpRequest) -> JsonResponse | None:
    """Return the error response to a request without a key; ``None`` if it has one, as every key may read.

    For views without REST framework.
    """
    headers: dict[str, str] = {}
    try:
        if authenticate(request) is not None:
            return None
    except KeyRefused as refused:
        if refused.retry_after is None:
            status, code, detail, headers = 401, "authentication_failed", str(refused), {"WWW-Authenticate": CHALLENGE}
        else:
            status, code, headers = 429, "throttled", {"Retry-After": str(refused.retry_after)}
            detail = f"Too many wrong API keys from this address: wait {refused.retry_after} s."
    else:
        if get_settings().API_KEYS:
            status, code, headers = 401, "not_authenticated", {"WWW-Authenticate": CHALLENGE}
            detail = "Send an API key: 'Authorization: Api-Key <key>'."
        else:
            status, code, detail = 403, "permission_denied", "TASKLOCK['API_KEYS'] has no keys: this is closed."
    headers["Cache-Control"] = "no-store"
    return JsonResponse({"code": code, "detail": detail}, status=status, headers=headers)


def address_of(request: HttpRequest) -> str:
    """Return the address of the client, behind ``REST_FRAMEWORK["NUM_PROXIES"]`` proxies.

    Without that setting ``X-Forwarded-For`` is ignored, because a client can send any.
    """
    proxies: Any = getattr(django_settings, "REST_FRAMEWORK", {}).get("NUM_PROXIES")
    hops = str(request.META.get("HTTP_X_FORWARDED_FOR", "")).split(",")
    if proxies and hops != [""]:
        return str(hops[-min(proxies, len(hops))]).strip()
    return str(request.META.get("REMOTE_ADDR") or "")


def _count_wrong(request: HttpRequest) -> int | None:
    """Count a wrong key of this address in the default cache. Return the seconds to wait, if any.

    If the cache fails, nothing is counted: it may use the very store whose outage an operator has come to look at.
    """
    address = address_of(request)
    now = time.time()
    window = int(now // WINDOW)
    name = f"tasklock:wrong-keys:{hashlib.sha256(address.encode()).hexdigest()}:{window}"
    try:
        cache.add(name, 0, timeout=2 * WINDOW)
        number = cache.incr(name)
    except Exception as error:  # of any kind of cache; ValueError: the entry was evicted
        logger.warning("wrong API keys are not counted: the default cache fails (%s)", type(error).__name__)
        return None
    if number <= WRONG_KEYS:
        return None
    if number == WRONG_KEYS + 1:
        logger.warning("more than %d wrong API keys a minute from %s: slowed down", WRONG_KEYS, address or "a socket")
    return max(1, int((window + 1) * WINDOW - now) + 1)


def _given(request: HttpRequest, in_query: bool) -> bytes | None:
    authorization = _bytes(request.META.get("HTTP_AUTHORIZATION", ""))
    scheme, _space, key = authorization.partition(b" ")
    if scheme.lower() == SCHEME.encode():
        return key.strip()
    if "HTTP_X_API_KEY" in request.META:
        return _bytes(request.META["HTTP_X_API_KEY"]).strip()
    if in_query and IN_QUERY in request.GET:
        return str(request.GET[IN_QUERY]).strip().encode(errors="replace")
    return None


def _bytes(header: str) -> bytes:
    """Return the bytes of a header, which WSGI and ASGI decode as Latin-1."""
    try:
        return header.encode("latin-1")
    except UnicodeEncodeError:  # a test client, which sends text
        return header.encode(errors="replace")
