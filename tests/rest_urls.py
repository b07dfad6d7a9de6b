"""The URLs of the REST tests: the prefix of source 000."""

from __future__ import annotations

from django.urls import include, path

urlpatterns = [path("api/v1/tasks/", include("django_tasklock.rest.urls"))]
