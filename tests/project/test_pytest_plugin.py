"""The plug-in for pytest, in projects of others: real runs, in processes that know nothing of this one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.kit_project import SETTINGS, run_pytest, write

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


@pytest.fixture
def project(tmp_path: Path) -> Path:
    write(tmp_path, {"settings.py": SETTINGS, "shop/test_shop.py": TESTS})
    return tmp_path


def test_the_fixture_and_the_marker(project: Path) -> None:
    said = run_pytest(project, "-W", "error", "--strict-markers")
    assert "25 passed" in said


@pytest.mark.slow
@pytest.mark.long
def test_in_parallel_and_in_any_distribution(project: Path) -> None:
    for how in ("worksteal", "loadscope"):
        said = run_pytest(project, "-n", "2", "--dist", how)
        assert "25 passed" in said


@pytest.mark.slow
def test_for_all_tests_by_the_configuration(project: Path) -> None:
    (project / "pytest.ini").write_text("[pytest]\ntasklock_store = memory\n")
    said = run_pytest(project, "-k", "test_who_does_not_ask or test_by_the_marker or settings_own", code=1)
    assert "assert 'MemoryBackend' == 'RedisBackend'" in said or "'BACKEND'" in said
    assert "2 passed" in said  # those that say where


@pytest.mark.slow
def test_a_store_that_there_is_not(project: Path) -> None:
    (project / "pytest.ini").write_text("[pytest]\ntasklock_store = disk\n")
    said = run_pytest(project, code=4)
    assert "tasklock_store of the configuration: the store of the locks must be one of 'memory', 'settings'" in said


@pytest.mark.slow
def test_a_marker_that_says_nothing(project: Path) -> None:
    marked = "import pytest\n@pytest.mark.tasklock\ndef test(): pass\n"
    (project / "shop" / "test_shop.py").write_text(marked)
    said = run_pytest(project, code=1)
    assert "the marker of shop/test_shop.py::test: the store of the locks must be one of" in said


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
    said = run_pytest(
        tmp_path, "-W", "error", "-p", "no:django", "-p", "no:xdist", "-p", "no:hypothesispytest", settings=None
    )
    assert "1 passed" in said


@pytest.mark.slow
def test_who_asks_for_locks_without_settings_is_told_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "test_plain.py").write_text("def test(tasklock): pass\n")
    said = run_pytest(tmp_path, "-p", "no:django", settings=None, code=1)
    assert "asks for locks, which need Django's settings: set DJANGO_SETTINGS_MODULE" in said


@pytest.mark.slow
def test_without_pytest_django(project: Path) -> None:
    """Whoever sets Django up by other means."""
    (project / "conftest.py").write_text("import django\ndjango.setup()\n")
    without = re.sub(r"def test_settings_.*?\n\n", "", TESTS, flags=re.DOTALL)
    (project / "shop" / "test_shop.py").write_text(without)
    assert "23 passed" in run_pytest(project, "-W", "error", "-p", "no:django")
