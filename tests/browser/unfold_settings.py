"""The same under django-unfold, whose pages need more than the strict policy allows."""

from __future__ import annotations

from config.settings import *  # noqa: F403
from config.settings import INSTALLED_APPS as _example

INSTALLED_APPS = ["unfold", *_example]
# Its Alpine.js evaluates attributes, and its pages have inline scripts and styles.
CONTENT_SECURITY_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline';"
    " img-src 'self' data:"
)
