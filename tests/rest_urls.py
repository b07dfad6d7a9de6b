"""The URLs of the REST tests: the prefix of source 000, and the OpenAPI document beside it."""

from __future__ import annotations

from django.urls import include, path
from drf_spectacular.views import SpectacularAPIView

urlpatterns = [
    path("api/v1/tasks/", include("django_tasklock.rest.urls")),
    path("openapi", SpectacularAPIView.as_view()),
]
