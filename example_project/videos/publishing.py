"""Publish the site's tasks by name: the web process imports neither ``tasks.py`` nor what the tasks need."""

from __future__ import annotations

from typing import Any

from django.db import transaction

from config.celery import app

__all__ = ["publish"]


def publish(task: str, **arguments: Any) -> None:
    """Publish a task of ``tasks.py`` once the transaction is committed, so that the worker finds the row."""
    transaction.on_commit(lambda: app.send_task(f"videos.tasks.{task}", kwargs=arguments))
