"""Locks over HTTP, with Django REST framework: ``path("api/v1/tasks/", include("django_tasklock.rest.urls"))``.

This package checks who may call; ``operations`` does the work. Documented in docs/rest.md.
"""

from __future__ import annotations

for _needed in ("rest_framework", "drf_spectacular"):
    try:
        __import__(_needed)
    except ModuleNotFoundError as error:
        raise ImportError(
            f"django_tasklock.rest needs {_needed}, which is not installed: pip install 'django-tasklock[rest]'",
            name=_needed,
        ) from error
