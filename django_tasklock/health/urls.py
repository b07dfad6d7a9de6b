"""``path("health/", include("django_tasklock.health.urls"))``; with and without a trailing slash."""

from __future__ import annotations

from django.urls import re_path

from django_tasklock.health.views import db_view, locks_view

app_name = "tasklock-health"
"""The namespace: ``reverse("tasklock-health:db")``."""
urlpatterns = [
    re_path(r"^db/?$", db_view, name="db"),
    re_path(r"^db/(?P<alias>[^/]+)/?$", db_view, name="database"),
    re_path(r"^locks/?$", locks_view, name="locks"),
]
"""Relative to the prefix; ``db/<alias>`` is one database."""
