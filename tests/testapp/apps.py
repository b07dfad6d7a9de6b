"""The app whose rows the tests guard."""

from __future__ import annotations

from django.apps import AppConfig

__all__ = ["TestAppConfig"]


class TestAppConfig(AppConfig):
    """No migrations: its tables are made with the test database."""

    name = "tests.testapp"
    label = "testapp"
    default_auto_field = "django.db.models.BigAutoField"
