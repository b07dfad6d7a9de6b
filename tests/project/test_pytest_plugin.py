"""The plug-in for pytest, and docs/testing.md, in projects of others: real runs, which know nothing of this one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.pages import DOCS, ROOT

SETTINGS = """
SECRET_KEY = "for tests only"
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "django_tasklock", "shop"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
TASKLOCK = {"LOCATION": "redis://127.0.0.1:1/0"}  # nobody is there: what is not in memory fails
"""
TESTS = """
import pytest
from django.conf import settings as django_settings
from django_tasklock import TaskLock, is_task_locked
from django_tasklock.backends import get_backend

def kind():
    return type(get_backend()).__name__

@pytest.mark.parametrize("number", range(20))
def test_each_begins_with_nothing(tasklock, number):
    assert kind() == "MemoryBackend"
    assert not is_task_locked("report")
    assert TaskLock("report", lease=60).acquire()
    tasklock.advance(number + 1)

def test_settings_that_are_changed_beside_it(tasklock, settings):
    assert kind() == "MemoryBackend"
    settings.TASKLOCK = {**settings.TASKLOCK, "LEASE": 5}
    settings.USE_TZ = False

def test_settings_that_are_changed_before_it(settings, tasklock):
    assert kind() == "MemoryBackend"

@pytest.mark.tasklock(store="memory")
def test_by_the_marker():
    assert kind() == "MemoryBackend"

@pytest.mark.tasklock("settings")
def test_the_settings_own(tasklock):
    assert kind() == "RedisBackend"

def test_who_does_not_ask_gets_what_the_settings_say():
    assert django_settings.TASKLOCK == {"LOCATION": "redis://127.0.0.1:1/0"}
    assert kind() == "RedisBackend"
"""


def write(directory: Path, files: Mapping[str, str]) -> None:
    """Write these files, and make packages of their directories."""
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.parent != directory:
            (path.parent / "__init__.py").touch()
        path.write_text(text, "utf-8")


def run_pytest(directory: Path, *options: str, settings: str | None = "settings", code: int = 0) -> str:
    """What pytest says there, in a process that knows nothing of this test run; it must end with ``code``."""
    known = {key: value for key, value in os.environ.items() if not key.startswith(("TASKLOCK_", "PYTEST_", "DJANGO_"))}
    if settings:
        known["DJANGO_SETTINGS_MODULE"] = settings
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-ra", *options],
        cwd=directory,
        env=known | {"PYTHONPATH": f"{directory}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def project(tmp_path: Path) -> Path:
    write(tmp_path, {"settings.py": SETTINGS, "shop/test_shop.py": TESTS})
    return tmp_path


def test_the_fixture_and_the_marker(project: Path) -> None:
    assert "25 passed" in run_pytest(project, "-W", "error", "--strict-markers")


@pytest.mark.slow
def test_for_all_tests_by_the_configuration(project: Path) -> None:
    (project / "pytest.ini").write_text("[pytest]\ntasklock_store = memory\n")
    said = run_pytest(project, "-k", "test_who_does_not_ask or test_by_the_marker or settings_own", code=1)
    assert "assert 'MemoryBackend' == 'RedisBackend'" in said or "'BACKEND'" in said
    assert "2 passed" in said  # those that say where
    (project / "pytest.ini").write_text("[pytest]\ntasklock_store = disk\n")
    said = run_pytest(project, code=4)
    assert "tasklock_store of the configuration: the store of the locks must be one of 'memory', 'settings'" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("test", "settings", "says"),
    [
        (
            "import pytest\n@pytest.mark.tasklock\ndef test(): pass\n",
            "settings",
            "the marker of shop/test_shop.py::test: the store of the locks must be one of",
        ),
        (
            "def test(tasklock): pass\n",
            None,
            "asks for locks, which need Django's settings: set DJANGO_SETTINGS_MODULE",
        ),
    ],
    ids=["a marker that says nothing", "no settings"],
)
def test_what_cannot_be_says_what_to_do(project: Path, test: str, settings: str | None, says: str) -> None:
    (project / "shop" / "test_shop.py").write_text(test)
    assert says in run_pytest(project, settings=settings, code=1)


@pytest.mark.slow
def test_without_pytest_django(project: Path) -> None:
    """Whoever sets Django up by other means."""
    (project / "conftest.py").write_text("import django\ndjango.setup()\n")
    without = re.sub(r"def test_settings_.*?\n\n", "", TESTS, flags=re.DOTALL)
    (project / "shop" / "test_shop.py").write_text(without)
    assert "23 passed" in run_pytest(project, "-W", "error", "-p", "no:django")


PLAIN = """
import sys

def test_nothing_is_imported():
    found = {name for name in sys.modules if name.partition(".")[0] in ("django", "celery", "redis")}
    assert found == set()
    assert {name for name in sys.modules if name.startswith("django_tasklock")} == {
        "django_tasklock", "django_tasklock.pytest_plugin"
    }
"""


def test_a_project_without_django_does_not_notice_it(tmp_path: Path) -> None:
    (tmp_path / "test_plain.py").write_text(PLAIN)
    others = ("-p", "no:django", "-p", "no:xdist", "-p", "no:hypothesispytest")
    assert "1 passed" in run_pytest(tmp_path, "-W", "error", *others, settings=None)


@pytest.mark.slow
def test_the_page_is_true(tmp_path: Path) -> None:
    """Each block of it is a file of a project, app and tests."""
    page = (DOCS / "testing.md").read_text("utf-8")
    files = dict(re.findall(r"^```python\n# (\S+\.py)\n(.*?)^```", page, re.DOTALL | re.MULTILINE))
    assert page.count("```python") == len(files)
    write(tmp_path, {"settings.py": SETTINGS, **files})
    assert re.search(r"\d+ passed", run_pytest(tmp_path, "-W", "error"))
