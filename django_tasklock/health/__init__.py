"""Health endpoints for load balancers and people: ``path("health/", include("django_tasklock.health.urls"))``.

``health/db`` and ``health/locks`` answer anybody with JSON and 200 or 503: counts and milliseconds, nothing secret.
``health/locks`` as a check of django-health-check: see ``plugins``.
"""
