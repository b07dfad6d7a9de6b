"""Health, for load balancers and people: ``path("health/", include("django_tasklock.health.urls"))``.

``health/db`` and ``health/locks``, as JSON, 200 or 503, for anybody: counts and milliseconds, nothing secret. As
checks of django-health-check as well: see ``plugins``.
"""
