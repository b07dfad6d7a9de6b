"""The URLs of the API, for ``include()``. Without trailing slashes; names may contain slashes, colons, any script."""

from __future__ import annotations

from django.urls import path, register_converter

from django_tasklock.rest.table import END_POINTS
from django_tasklock.rest.view import EndPointView


class NameConverter:
    """Matches everything between the prefix and the last part, even line breaks, which the view refuses with JSON."""

    regex = "(?s:.+)"

    def to_python(self, value: str) -> str:
        """Return the value unchanged."""
        return value

    def to_url(self, value: str) -> str:
        """Return the value unchanged; ``reverse`` escapes it."""
        return value


register_converter(NameConverter, "tasklock_name")

app_name = "tasklock"
"""The namespace: ``reverse("tasklock:locks")``."""
urlpatterns = [
    path(
        point.path.replace("{", "<tasklock_name:").replace("}", ">"),
        EndPointView.as_view(point=point, http_method_names=point.methods),
        name=point.name,
    )
    for point in END_POINTS
]
"""The URL patterns."""
