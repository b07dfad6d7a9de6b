"""A Content-Security-Policy on every answer, for all versions of Django.

Django 6 and newer have this built in: ``django.middleware.csp.ContentSecurityPolicyMiddleware`` and ``SECURE_CSP``.
"""

from __future__ import annotations

from collections.abc import Callable

from django.conf import settings
from django.http import HttpRequest, HttpResponse

__all__ = ["content_security_policy"]

Answer = Callable[[HttpRequest], HttpResponse]


def content_security_policy(get_response: Answer) -> Answer:
    """Middleware: send ``CONTENT_SECURITY_POLICY`` unless a view has sent a policy of its own."""

    def middleware(request: HttpRequest) -> HttpResponse:
        response = get_response(request)
        response.headers.setdefault("Content-Security-Policy", settings.CONTENT_SECURITY_POLICY)
        return response

    return middleware
