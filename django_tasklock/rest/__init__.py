"""Locks over HTTP, with Django REST framework: ``path("api/v1/tasks/", include("django_tasklock.rest.urls"))``.

``table`` has all end points; ``operations`` does the work. Documented in docs/rest.md.
"""

from __future__ import annotations

try:
    import rest_framework as _rest_framework  # noqa: F401
except ModuleNotFoundError as error:
    raise ImportError(
        "django_tasklock.rest needs rest_framework, which is not installed: pip install 'django-tasklock[rest]'",
        name="rest_framework",
    ) from error
