"""Locks as rows of one table: for projects without Redis."""

from django_tasklock.backends.database.backend import DatabaseBackend

__all__ = ["DatabaseBackend"]
