"""Addresses of the site."""

from __future__ import annotations

from django.urls import path

from videos import views

urlpatterns = [
    path("", views.index, name="index"),
    path("cards/", views.cards, name="cards"),
    path("videos/<int:video_id>/", views.detail, name="detail"),
    path("videos/<int:video_id>/process/", views.process, name="process"),
]
