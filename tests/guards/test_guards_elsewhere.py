"""Guards in task modules that the web process never imports: admin, REST, commands and checks know them all the same.

The layout that users have: a project in files of its own, whose worker imports ``films/tasks.py`` and whose web process
does not. One process is the worker and has the locks and rows; each web process is started anew.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytestmark = pytest.mark.slow

SETTINGS = """
from tests.settings import *

ROOT_URLCONF, ALLOWED_HOSTS, DEBUG = "project.urls", ["*"], False
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": {database!r}, "OPTIONS": {"timeout": 20}}}
INSTALLED_APPS = ["django.contrib.admin", "django.contrib.auth", "django.contrib.contenttypes",
                  "django.contrib.messages", "django.contrib.sessions", "rest_framework", "django_tasklock", "films"]
TASKLOCK = {"LOCATION": TASKLOCK["LOCATION"], "KEY_PREFIX": {prefix!r}, "API_KEYS": {"oncall": "k" * 40}}
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

        from django_tasklock import StateGuard, current_claim, model_lock
        from films.models import Film

        if os.environ.get("WEB") == "broken":
            import ffmpeg_of_the_worker

        FIELD = "statos" if os.environ.get("WEB") == "misspelt" else "status"

        @shared_task
        @model_lock(Film, "film:{pk}", pk="pk", guard=StateGuard(field=FIELD, claim_from=["new"], claim_as="busy"))
        def process(pk, wait=None):
            wait(current_claim())
    """,
}
WORKER = """
    import sys, threading
    import django; django.setup()
    from django.contrib.auth.models import User
    from django.core.management import call_command
    from django.db import connections
    from django_tasklock import StaleClaim

    call_command("migrate", run_syncdb=True, verbosity=0)
    User.objects.create_superuser("root")
    from films.models import Film
    from films.tasks import process

    said, released = {}, threading.Event()
    begun = threading.Semaphore(0)

    def body(claim):
        begun.release()
        released.wait()
        try:
            claim.update(progress=50)
            said[claim.pk] = "written"
        except StaleClaim:
            said[claim.pk] = "refused"

    def run(pk):
        try:
            process(pk, wait=body)
        except StaleClaim:
            pass
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run, args=(Film.objects.create().pk,)) for _ in range(9)]
    for thread in threads:
        thread.start()
        begun.acquire()
    print("ready", flush=True)
    sys.stdin.readline()
    released.set()
    for thread in threads:
        thread.join()
    print([said[pk] for pk in sorted(said)], flush=True)
"""
WEB = """
    import io, json, os, sys
    import django; django.setup()
    from django.contrib.auth.models import User
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
    first = int(sys.argv[1])
    rest, admin = Client(headers={"authorization": "Api-Key " + "k" * 40}), Client()
    admin.force_login(User.objects.get())
    answer = {"before": "films.tasks" in sys.modules}
    done = rest.post(f"/api/film:{first}/release-lock", {"reason": "hangs"}, content_type="application/json")
    answer["rest"] = [done.status_code, done.json().get("fenced")]
    name = f"film_3A{first + 1}"
    form = admin.get(f"/admin/tasklock/lock/{name}/release/").context["form"]
    admin.post(f"/admin/tasklock/lock/{name}/release/", {**form.initial, "reason": "hangs"})
    out = io.StringIO()
    call_command("locks", "--release", f"film:{first + 2}", "--reason", "hangs", stdout=out)
    answer["rows"] = [(film.status, film.lock_token, film.lock_epoch)
                      for film in Film.objects.filter(pk__range=(first, first + 2)).order_by("pk")]
    answer["audit"] = list(AuditEntry.objects.order_by("-id").values_list("outcome", flat=True)[:3])
    report = sweep(dry_run=True, pause=0)
    answer["left out"] = report.left_out
    answer["checked"] = len(runs)
    answer["skips"] = "CELERY_SKIP_CHECKS" in os.environ
    answer["findings"] = dict([one.id, one.msg] for one in checks.run_checks(tags=["tasklock"]))
    print(json.dumps(answer))
"""
CHECK = """
    import json, sys
    import django; django.setup()
    from django.core.checks import run_checks

    print(json.dumps([[one.id, one.msg] for one in run_checks(tags=["tasklock"])]))
"""


class Project(NamedTuple):
    """The files of a project, and how to run something in it."""

    home: Path
    environ: dict[str, str]

    def start(self, code: str, *arguments: str, **environ: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-W", "error", "-c", textwrap.dedent(code), *arguments],
            env=self.environ | environ,
            cwd=self.home,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, code: str, *arguments: str, **environ: str) -> Any:
        process = self.start(code, *arguments, **environ)
        said, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        return json.loads(said.splitlines()[-1])


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    home = tmp_path_factory.mktemp("site")
    settings = SETTINGS.replace("{database!r}", repr(str(home / "db.sqlite3")))
    settings = settings.replace("{prefix!r}", repr(f"web{secrets.token_hex(4)}:"))
    app = "import os\nif os.environ.get('WEB') != 'no app':\n    from project.celery import app\n"
    for name, text in {**FILES, "project/settings.py": settings, "project/__init__.py": app}.items():
        (home / name).parent.mkdir(exist_ok=True)
        (home / name).write_text(textwrap.dedent(text))
    path = os.pathsep.join([str(home), str(Path(__file__).parents[2])])
    return Project(home, os.environ | {"DJANGO_SETTINGS_MODULE": "project.settings", "PYTHONPATH": path})


@pytest.fixture(scope="module")
def worker(project: Project) -> Iterator[Callable[[], str]]:
    """Has nine films; called, it writes to all of them, ends, and tells which writes were accepted."""
    process = project.start(WORKER)
    assert process.stdout.readline() == "ready\n"
    yield lambda: process.communicate("go\n", timeout=60)[0]
    if process.poll() is None:
        process.kill()
        process.communicate()


def test_a_release_fences_whatever_the_web_process_has_imported(project, worker):
    for kind, first in (("app", 1), ("no app", 4)):
        answer = project.run(WEB, str(first), WEB=kind)
        assert answer["before"] is False
        assert answer["rest"] == [200, True]
        assert answer["rows"] == [["new", "", 2]] * 3
        assert (answer["checked"], answer["skips"], answer["left out"]) == (0, False, [])
    answer = project.run(WEB, "7", WEB="broken")
    assert answer["rest"] == [200, True]
    assert answer["rows"] == [["busy", "", 2]] * 3
    assert all("no guard of it is known here" in text for text in answer["audit"])
    assert "ffmpeg_of_the_worker" in answer["findings"]["tasklock.W017"]
    assert "ffmpeg_of_the_worker" in answer["left out"][0]
    assert worker() == f"{['refused'] * 9}\n"


def test_the_checks_see_guards_that_only_the_worker_imports(project):
    found = dict(project.run(CHECK, WEB="misspelt"))
    assert "'statos'" in found["tasklock.E004"]
