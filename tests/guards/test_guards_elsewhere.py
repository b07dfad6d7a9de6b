"""Guards in task modules that the web process never imports: admin, REST, commands and checks know them all the same.

The layout that users have: a project in files of its own, whose worker imports ``films/tasks.py`` and whose web process
does not. One process is the worker and takes the locks and rows; each web process is started anew.
"""

from __future__ import annotations

import json
import secrets
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.public import script

pytestmark = pytest.mark.slow

SETTINGS = """
from tests.settings import *

ROOT_URLCONF, ALLOWED_HOSTS, DEBUG = "project.urls", ["*"], False
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": {database!r}, "OPTIONS": {"timeout": 20}}}
INSTALLED_APPS = ["django.contrib.admin", "django.contrib.auth", "django.contrib.contenttypes",
                  "django.contrib.messages", "django.contrib.sessions", "rest_framework", "django_tasklock", "films"]
TASKLOCK = {"LOCATION": TASKLOCK["LOCATION"], "KEY_PREFIX": {prefix!r}, "API_KEYS": {"oncall": "k" * 40}}
LOGGING = {"version": 1, "loggers": {"django_tasklock": {"level": "CRITICAL"}}}
"""
FILES = {
    "project/celery.py": """
        from celery import Celery

        app = Celery("project", broker="memory://")
        app.autodiscover_tasks()
    """,
    "project/urls.py": """
        from django.contrib import admin
        from django.urls import include, path

        urlpatterns = [path("admin/", admin.site.urls), path("api/", include("django_tasklock.rest.urls"))]
    """,
    "films/__init__.py": "",
    "films/models.py": """
        from django.db import models

        from django_tasklock.models import GuardedModel

        class Film(GuardedModel):
            status = models.CharField(max_length=20, default="new")
            progress = models.IntegerField(default=0)
    """,
    "films/tasks.py": """
        import os

        from celery import shared_task

        from django_tasklock import StateGuard, model_lock
        from django_tasklock.celery import OnceTask
        from films.models import Film

        if os.environ.get("WEB") == "broken":
            import ffmpeg_of_the_worker

        if os.environ.get("WEB") == "mistyped":

            @shared_task(base=OnceTask, key="film:{kp}")
            def scale(pk):
                pass

        FIELD = "statos" if os.environ.get("WEB") == "misspelt" else "status"

        @shared_task
        @model_lock(Film, "film:{pk}", guard=StateGuard(field=FIELD, claim_from=["new"], claim_as="busy"), lease=600)
        def process(pk, body=None):
            body()
    """,
}
WORKER = """
    import json, os
    import django; django.setup()
    from django.core.management import call_command
    from films.models import Film
    from films.tasks import process

    call_command("migrate", run_syncdb=True, verbosity=0)

    def work(films):
        if not films:
            print(json.dumps("claimed"), flush=True)
            os._exit(0)  # it dies; its locks outlive it
        process(films[0].pk, body=lambda: work(films[1:]))

    work([Film.objects.create() for _ in range(6)])
"""
WEB = """
    import io, json, os, sys
    import django; django.setup()
    from django.core import checks
    from django.core.management import call_command
    from django.test import Client
    from django.test.utils import setup_test_environment
    from django_tasklock.models import AuditEntry
    from django_tasklock.operations import sweep
    from films.models import Film

    runs = []
    checks.register(lambda **kwargs: runs.append(kwargs) or [], "counting")
    setup_test_environment()
    first = FIRST
    rest = Client(headers={"authorization": "Api-Key " + "k" * 40})
    answer = {"before": "films.tasks" in sys.modules}
    done = rest.post(f"/api/film:{first}/release-lock", {"reason": "hangs"}, content_type="application/json")
    answer["rest"] = [done.status_code, done.json().get("fenced")]
    call_command("locks", "--release", f"film:{first + 1}", "--reason", "hangs", stdout=io.StringIO())
    answer["rows"] = [(film.status, film.lock_token, film.lock_epoch)
                      for film in Film.objects.filter(pk__in=(first, first + 1))]
    answer["audit"] = list(AuditEntry.objects.order_by("-id").values_list("outcome", flat=True)[:2])
    answer["left out"] = sweep(dry_run=True, pause=0).left_out
    answer["checked"] = [len(runs), "CELERY_SKIP_CHECKS" in os.environ]
    answer["findings"] = dict([one.id, one.msg] for one in checks.run_checks(tags=["tasklock"]))
    print(json.dumps(answer))
"""
CHECK = """
    import json, sys
    import django; django.setup()
    from django.core.checks import run_checks

    print(json.dumps([[one.id, one.msg] for one in run_checks(tags=["tasklock"])]))
"""

BEGIN_WORKER = """
    import json
    import django; django.setup()
    import films.tasks  # as a view does that publishes one
    from project.celery import app

    try:
        app.loader.init_worker()  # with which a worker begins
        print(json.dumps(sorted(name for name in app.tasks if name.startswith("films"))))
    except Exception as error:
        print(json.dumps(str(error)))
"""


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Any]:
    """``run(code, ...)`` in a process of the project; what it printed last."""
    settings = SETTINGS.replace("{database!r}", repr(str(tmp_path / "db.sqlite3")))
    settings = settings.replace("{prefix!r}", repr(f"web{secrets.token_hex(4)}:"))
    app = "import os\nif os.environ.get('WEB') != 'no app':\n    from project.celery import app\n"
    for name, text in {**FILES, "project/settings.py": settings, "project/__init__.py": app}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(textwrap.dedent(text))

    def run(code: str, web: str = "") -> Any:
        said = script(textwrap.dedent(code), cwd=tmp_path, DJANGO_SETTINGS_MODULE="project.settings", WEB=web)
        return json.loads(said.splitlines()[-1])

    return run


def test_a_release_fences_whatever_the_web_process_has_imported(run: Callable[..., Any]) -> None:
    assert run(WORKER) == "claimed"
    for web, first in (("app", 1), ("no app", 3)):
        answer = run(WEB.replace("FIRST", str(first)), web=web)
        assert answer["before"] is False
        assert answer["rest"] == [200, True]
        assert answer["rows"] == [["new", "", 2]] * 2
        assert (answer["checked"], answer["left out"]) == ([0, False], [])
    answer = run(WEB.replace("FIRST", "5"), web="broken")
    assert answer["rest"] == [200, True]
    assert answer["rows"] == [["busy", "", 2]] * 2
    assert all("no guard of it is known here" in text for text in answer["audit"])
    assert "ffmpeg_of_the_worker" in answer["findings"]["tasklock.W017"]
    assert "ffmpeg_of_the_worker" in answer["left out"][0]


def test_the_checks_see_guards_that_only_the_worker_imports(run: Callable[..., Any]) -> None:
    found = dict(run(CHECK, web="misspelt"))
    assert "'statos'" in found["tasklock.E004"]


def test_a_worker_does_not_begin_without_some_of_its_tasks(run: Callable[..., Any]) -> None:
    """The checks bind its tasks before the worker does, and one that cannot be bound leaves others out."""
    assert run(BEGIN_WORKER) == ["films.tasks.process"]
    assert "names 'kp', which is no argument of it; known: pk" in run(BEGIN_WORKER, web="mistyped")
