"""The app that has the tables of the ported programs."""

from __future__ import annotations

from django.apps import AppConfig


class PortsConfig(AppConfig):
    """Has no migrations: the tables are made from the models."""

    name = "tests.ports"
    label = "ports"
    default_auto_field = "django.db.models.BigAutoField"
