"""A site that real Celery workers serve: one app, its settings and its tasks, the same in workers and in tests.

``fixtures`` has the fixture ``celery_site``; a test module asks for it with
``pytest_plugins = ["tests.support.celery_site.fixtures"]``.
"""
