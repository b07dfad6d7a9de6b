"""Addresses: the site at the root, the admin, the operators' REST end points, health, and (with ``DEBUG``) media."""

from __future__ import annotations

from django.conf import settings
from django.conf.urls.static import static
from django.contrib import admin
from django.templatetags.static import static as file
from django.urls import include, path
from django.views.generic import RedirectView

urlpatterns = [
    path("admin/", admin.site.urls),
    path("api/v1/tasks/", include("django_tasklock.rest.urls")),
    path("health/", include("django_tasklock.health.urls")),
    path("favicon.ico", RedirectView.as_view(url=file("videos/icon.svg"))),
    path("", include("videos.urls")),
    *static(settings.MEDIA_URL, document_root=settings.MEDIA_ROOT),
]
