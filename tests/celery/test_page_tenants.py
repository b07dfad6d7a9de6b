"""docs/tenants.md with django-tenants on PostgreSQL and real workers: two tenants, a killed worker, and the sweep."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from django_tasklock import list_all_task_locks
from tests.support.celery_workers import Guardian
from tests.support.database_url import database
from tests.support.environment import DATABASE
from tests.support.pages import DOCS, ROOT, Project, blocks_of
from tests.support.stores import eventually

pytest_plugins = ["tests.support.page_fixtures"]
pytestmark = [
    pytest.mark.database,
    pytest.mark.slow,
    pytest.mark.workers,
    pytest.mark.skipif(connection.vendor != "postgresql", reason="schemas are PostgreSQL's"),
]
PATIENCE = 120.0  # seconds: a worker starts slowly where all others do so as well
TENANTS = ("acme", "globex")

ENCODING = """
import pathlib, time
from django.db import connection

FOLDER = pathlib.Path({folder!r})


def encode(kind, video_id):
    with (FOLDER / "journal").open("a") as journal:
        journal.write(f"{{connection.schema_name}} {{kind}} {{video_id}}\\n")
    while not (FOLDER / "gate").exists():
        time.sleep(0.05)
"""

COROUTINE = """
from asgiref.sync import async_to_sync
from django_tasklock import TaskLock

async def publish():
    async with TaskLock("publish") as lock:
        return lock.name

"""


@pytest.fixture
def own_database(transactional_db: None) -> Iterator[dict[str, Any]]:
    """A database for this project alone, which makes schemas in it."""
    known = database(os.environ[DATABASE])
    name = f"{connection.settings_dict['NAME']}_tenants"
    with connection.cursor() as cursor:
        cursor.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
        cursor.execute(f'CREATE DATABASE "{name}"')
    yield {key: known[key] for key in ("USER", "PASSWORD", "HOST", "PORT")} | {"NAME": name}
    with connection.cursor() as cursor:
        cursor.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """``worker()`` starts one of the project; all are killed afterwards."""
    guardian, started = Guardian(), []

    def start() -> subprocess.Popen[bytes]:
        with (tmp_path / "worker.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "celery", "-A", "config", "worker", "-l", "info", "-c", "2"],
                cwd=tmp_path,
                env={**os.environ, "PYTHONPATH": str(ROOT), "DJANGO_SETTINGS_MODULE": "config.settings"},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        guardian.watch(process.pid)
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    guardian.dismiss()


@pytest.mark.usefixtures("empty_store")
def test_two_tenants_a_killed_worker_and_the_sweep(tmp_path: Path, own_database: dict[str, Any], worker: Any) -> None:
    project, blocks = Project(tmp_path).start(), blocks_of(DOCS / "tenants.md")
    project.run("manage.py", "startapp", "customers")
    for block in blocks:
        if block.file:
            project.add(block.file, block.code)
    project.add("config/settings.py", f"DATABASES['default'].update({own_database!r})")
    project.add("videos/encoding.py", ENCODING.format(folder=str(tmp_path)))
    project.run("manage.py", "makemigrations", "customers", "videos")
    project.run("manage.py", "migrate_schemas", "--shared")
    project.run("manage.py", "check", "--tag", "tasklock")
    swept = project.run("manage.py", "sweep_locks")
    assert "rows of videos.video: tenant 'public' has no such table; sweep as each tenant" in swept

    def journal() -> list[str]:
        path = tmp_path / "journal"
        return sorted(path.read_text().splitlines()) if path.exists() else []

    def rows() -> dict[str, tuple[Any, ...]]:
        given = {key.lower(): value for key, value in own_database.items() if value}
        given["dbname"] = given.pop("name")
        import psycopg  # installed where PostgreSQL is tested

        with psycopg.connect(**given) as database:
            return {
                schema: database.execute(f"SELECT status, lock_epoch FROM {schema}.videos_video").fetchone() or ()
                for schema in TENANTS
            }

    def wait(condition: Callable[[], object]) -> None:
        eventually(condition, PATIENCE, lambda: f"{journal()} {rows()}\n{(tmp_path / 'worker.log').read_text()}")

    def shell(code: str) -> None:
        project.shell([("tests:1", "python", code)])

    def each(code: str) -> str:
        return f"for schema in {TENANTS}:\n    with schema_context(schema):\n        {code}\n"

    imports = (
        "from django_tenants.utils import schema_context\n"
        "from django_tasklock.operations import sweep\n"
        "from videos.tasks import process, sweep_tenants, thumbnail\n"
    )
    [typed] = [block.code for block in blocks if block.language == "python" and not block.file]
    shell(typed)
    first = worker()
    wait(lambda: journal() == ["acme video 1", "globex video 1"])
    assert sorted(info.name for info in list_all_task_locks()) == ["acme:video:1", "globex:video:1"]
    assert rows() == dict.fromkeys(TENANTS, ("processing", 1))

    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    shell(f"{imports}with schema_context('globex'):\n    sweep()")
    assert rows() == {"acme": ("processing", 1), "globex": ("uploaded", 2)}
    assert [info.name for info in list_all_task_locks()] == ["acme:video:1"]

    # A thumbnail of each tenant runs, and another one is parked behind it.
    (tmp_path / "journal").unlink()
    shell(imports + each("thumbnail.delay(1); thumbnail.delay(1)") + "sweep_tenants.delay()")
    worker()
    wait(lambda: journal() == ["acme thumbnail 1", "globex thumbnail 1"])
    assert {info.name for info in list_all_task_locks()} >= {"acme:thumbnail:1", "globex:thumbnail:1"}
    (tmp_path / "gate").touch()
    wait(lambda: rows()["acme"][0] == "ready")  # the sweep in its schema has published it again
    shell(f"{imports}with schema_context('globex'):\n    process.delay(1)")
    wait(lambda: rows()["globex"][0] == "ready")
    for schema in TENANTS:
        wait(lambda schema=schema: journal().count(f"{schema} thumbnail 1") == 2)
        assert journal().count(f"{schema} video 1") == 1
    wait(lambda: not list_all_task_locks())

    project.run("manage.py", "all_tenants_command", "--no-public", "sweep_locks", "--requeue", "-v", "0")
    shell(f"{imports}{COROUTINE}" + each("assert async_to_sync(publish)() == f'{schema}:publish', schema"))
