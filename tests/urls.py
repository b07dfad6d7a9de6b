"""Addresses of the tests: the admin, and an admin site of a project's own."""

from __future__ import annotations

from django.contrib import admin
from django.urls import path

from tests.support.admin_sites import operators

urlpatterns = [
    path("admin/", admin.site.urls),
    path("operators/", operators.urls),
]
