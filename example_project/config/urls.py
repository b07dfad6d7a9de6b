"""Addresses: the site at the root, the admin, and (with ``DEBUG``) the media."""

from __future__ import annotations

from django.conf import settings
from django.conf.urls.static import static
from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("admin/", admin.site.urls),
    path("", include("videos.urls")),
    *static(settings.MEDIA_URL, document_root=settings.MEDIA_ROOT),
]
