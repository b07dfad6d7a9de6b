"""The project of the benchmark ``walks``: a guarded row, the admin, an app whose messages stay in this process."""

from __future__ import annotations

import os
from typing import Any

import django
from celery import Celery
from celery.app.trace import build_tracer
from django.conf import settings
from django.contrib import admin
from django.db import models
from django.urls import path

__all__ = ["GUARD", "Row", "app", "deliver", "once", "process"]

if not settings.configured:
    settings.configure(
        SECRET_KEY="benchmark",
        USE_TZ=True,
        ROOT_URLCONF=__name__,
        STATIC_URL="/static/",
        ALLOWED_HOSTS=["testserver"],
        INSTALLED_APPS=[
            "django.contrib.admin",
            "django.contrib.auth",
            "django.contrib.contenttypes",
            "django.contrib.messages",
            "django.contrib.sessions",
            "django_tasklock",
            "benchmarks",
        ],
        MIDDLEWARE=[
            "django.contrib.sessions.middleware.SessionMiddleware",
            "django.contrib.auth.middleware.AuthenticationMiddleware",
            "django.contrib.messages.middleware.MessageMiddleware",
        ],
        TEMPLATES=[
            {
                "BACKEND": "django.template.backends.django.DjangoTemplates",
                "APP_DIRS": True,
                "OPTIONS": {
                    "context_processors": [
                        "django.template.context_processors.request",
                        "django.contrib.auth.context_processors.auth",
                        "django.contrib.messages.context_processors.messages",
                    ]
                },
            }
        ],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ["TASKLOCK_BENCH_DATABASE"]}},
        TASKLOCK={"LOCATION": os.environ["TASKLOCK_BENCH_URL"], "ON_UNAVAILABLE": "raise"},
        CACHES={"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}},
    )
    django.setup()

from django_tasklock import StateGuard, model_lock
from django_tasklock.celery import OnceTask
from django_tasklock.models import GuardedModel

urlpatterns = [path("admin/", admin.site.urls)]
app = Celery("walks", broker="memory://", backend="cache+memory://", set_as_current=True)
GUARD = StateGuard(claim_from=["new", "busy"], claim_as="busy", done="done", failed="failed")


class Row(GuardedModel):
    """What is worked on."""

    status = models.CharField(max_length=20, default="new")

    class Meta:
        app_label = "benchmarks"


@app.task(acks_late=True)
@model_lock(Row, "row:{pk}", guard=GUARD)
def process(pk: int) -> None:
    """Do nothing with the row."""


@app.task(base=OnceTask, key="row:{pk}", guard=GUARD, model=Row)
def once(pk: int) -> None:
    """Do nothing with the row."""


def deliver(message: Any, *, redelivered: bool = False) -> str:
    """Run a message that was taken off the queue as a worker's child would; return its state."""
    args, kwargs, canvas = message.payload
    request = {
        **message.headers,
        **canvas,
        "args": args,
        "kwargs": kwargs,
        "hostname": "walks",
        "is_eager": False,
        "delivery_info": {"redelivered": redelivered},
    }
    task = message.headers["task"]
    trace = build_tracer(task, app.tasks[task], app=app)
    outcome = trace(message.headers["id"], args, kwargs, request)
    return "SUCCESS" if outcome.info is None else str(outcome.info.state)
