"""``path("metrics/", include("django_tasklock.metrics.urls"))``. Needs ``prometheus-client``."""

from __future__ import annotations

from django.urls import re_path

from django_tasklock.metrics.views import metrics_view

app_name = "tasklock-metrics"
"""The namespace: ``reverse("tasklock-metrics:metrics")``."""
urlpatterns = [re_path(r"^$", metrics_view, name="metrics")]
"""Relative to the prefix."""
