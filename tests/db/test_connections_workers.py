"""Celery workers and database connections: prefork with Django's pool, threads, gevent; CONN_MAX_AGE; coroutines."""

from __future__ import annotations

import pytest
from django.db import connection

from tests.support.celery_site.pooled_tasks import pooled_video
from tests.support.database_pool import needs_pool
from tests.support.dropping import counted, kill_all_others
from tests.support.pools import needs
from tests.testapp.models import Note, Video

pytest_plugins = ["tests.support.celery_site.fixtures"]
pytestmark = pytest.mark.database
POOLED = "tests.support.celery_site.pooled_tasks"
HOURS = "tests.support.celery_site.hours_tasks"

POOLS = ["prefork", "threads", "gevent"]


def goes_on(session):
    """Whether PostgreSQL still has it."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE pid = %s", [session])
        return cursor.fetchone() == (1,)


@pytest.mark.parametrize("pool", POOLS)
def test_no_process_uses_anothers_connection(celery_site, pool):
    """Every second task runs in a child that was forked when the main process had a pool of connections."""
    needs(pool)
    if pool == "gevent" and connection.vendor == "sqlite":
        pytest.skip("SQLite waits for its own lock without letting other greenlets run")
    celery_site.configure(lease=10, tasks=(POOLED,))
    renewed = ("--max-tasks-per-child=2",) if pool == "prefork" else ()
    server = celery_site.worker(pool=pool, concurrency=2, arguments=renewed)
    celery_site.wait_until(lambda: celery_site.events("main"))
    videos = [Video.objects.create() for _ in range(10)]
    ran = [celery_site.publish(pooled_video, video.pk) for video in videos]
    for result in ran:
        assert celery_site.outcome(result) == ("SUCCESS", {"before": False, "after": False})
    assert {(one.status, one.progress) for one in Video.objects.all()} == {("ready", 40)}
    used = celery_site.events("used")
    if pool == "prefork":
        assert len({event.pid for event in used}) >= 5
    if connection.vendor == "postgresql":
        by_session = {}
        [main] = celery_site.events("main")
        for event in used:
            by_session.setdefault(event.more["session"], set()).add(event.pid)
        by_session.setdefault(main.more["sessions"][0], set()).add(main.pid)
        assert {len(pids) for pids in by_session.values()} == {1}
        assert goes_on(main.more["sessions"][0]), "a child has said farewell on its parent's connection"
    assert "Traceback" not in server.log()


@pytest.mark.parametrize("keeps", ["CONN_MAX_AGE", "pool"])
def test_two_hours(celery_site, keeps):
    """Issue 5, 5: the server ends every session in the middle of a task, and once more before the next one begins."""
    if keeps == "pool":
        needs_pool()
    elif connection.vendor == "sqlite":
        pytest.skip("SQLite has no server that could end a session")
    celery_site.configure(lease=30, tasks=(POOLED, HOURS) if keeps == "pool" else (HOURS,))
    celery_site.configure(CELERY_DB_REUSE_MAX=100)  # else Celery closes all after each task, and the pool
    celery_site.worker(pool="prefork", concurrency=1)
    videos = [Video.objects.create() for _ in range(2)]
    with counted():
        for number, video in enumerate(videos):
            gate = celery_site.gate()
            result = celery_site.publish("hours", video.pk, until=gate)
            celery_site.started(video.pk)
            assert kill_all_others() >= 1
            gate.open()
            assert celery_site.outcome(result)[0] == "SUCCESS"
            video.refresh_from_db()
            assert (video.status, video.progress) == ("ready", 90)
            assert list(Note.objects.filter(video=video).values_list("text", flat=True)) == ["ready"]
            if not number:
                assert kill_all_others() >= 1, "nothing was kept for the next task"
    assert len({event.pid for event in celery_site.events("start")}) == 1
