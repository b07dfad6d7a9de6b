"""What a claim and the sweep decide is read from the database, whatever caches the ORM: cacheops, cachalot."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

CACHES = {
    "cacheops": {"CACHEOPS": {"*.*": {"ops": "all", "timeout": 3600}}},
    "cachalot": {"CACHALOT_UNCACHABLE_APPS": ("tasklock",)},
}

PROGRAM = """
import sys
import django
from django.conf import settings

cache, options, folder, redis = sys.argv[1], eval(sys.argv[2]), sys.argv[3], sys.argv[4]
if cache == "cacheops":
    options["CACHEOPS_REDIS"] = redis
settings.configure(
    INSTALLED_APPS=["django.contrib.contenttypes", "django_tasklock", "tests.testapp", cache],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": f"{folder}/db.sqlite3"}},
    CACHES={"default": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": redis}},
    TASKLOCK={"BACKEND": "django_tasklock.backends.database.DatabaseBackend"},
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField", USE_TZ=True, **options,
)
django.setup()

from django.core.management import call_command
from django.db import connection

from django_tasklock import Claim, StateGuard, TaskLock, operations
from tests.testapp.models import Video

call_command("migrate", run_syncdb=True, verbosity=0)
guard = StateGuard(claim_from=["uploading"], claim_as="processing", done="ready", failed="failed")
guard.register(Video)
videos = [Video.objects.create(status="uploading") for _ in range(2)]


def elsewhere(sql, *values):  # what another process writes, of which the cache here does not hear
    with connection.connection as raw:
        raw.execute(sql, values)


list(Video.objects.filter(pk=videos[1].pk))
assert Video.objects.get(pk=videos[1].pk).status == "uploading"
elsewhere("UPDATE testapp_video SET progress = 7")
assert Video.objects.get(pk=videos[1].pk).progress == 0, "nothing is cached: this proves nothing"

claim = Claim.take(Video, videos[0].pk, guard, "a" * 32)
assert claim.valid
elsewhere("UPDATE testapp_video SET lock_token = ?, lock_epoch = lock_epoch + 1 WHERE id = ?", "b" * 32, videos[0].pk)
assert not claim.valid, "another claim has the row"

assert operations.sweep(pause=0, dry_run=True).swept == 1, "a row is claimed without a lock"
elsewhere("UPDATE testapp_video SET lock_token = '', status = 'ready'")
assert operations.sweep(pause=0, dry_run=True).swept == 0
elsewhere("UPDATE testapp_video SET lock_token = ?, status = 'processing' WHERE id = ?", "c" * 32, videos[1].pk)
assert operations.sweep(pause=0).swept == 1
assert Claim.take(Video, videos[1].pk, guard, "d" * 32).valid

lock = TaskLock("a")
assert lock.acquire()
assert lock.locked()
elsewhere("UPDATE tasklock_lock SET expires_at = -expires_at")
assert not lock.locked()
assert operations.list_locks().total == 0
assert operations.sweep_runs()
"""


@pytest.mark.slow
@pytest.mark.parametrize("cache", CACHES)
def test_no_cache_answers(cache: str, redis_server, tmp_path: Path) -> None:
    if find_spec(cache) is None:
        pytest.skip(f"{cache} is not installed: make test-all does, or pip install '.[peers]'")
    command = [sys.executable, "-c", PROGRAM, cache, repr(CACHES[cache]), str(tmp_path), redis_server.url]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
