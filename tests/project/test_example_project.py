"""The example project: it starts, its pages answer, and it transcodes a real video once.

Each test runs a script in a process of its own, with the example's settings, a new
SQLite file, and a Redis of its own. A script prints one JSON line with what it saw.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.building import run
from tests.support.pages import ROOT
from tests.support.redis_server import RedisServer

SITE = ROOT / "example_project"

PRELUDE = """
import json, sys
from pathlib import Path
import django
django.setup()
from config.celery import app
from django.conf import settings
from django.core.files import File
from django.core.management import call_command
from django.test import Client
from videos import ffmpeg, locks, tasks
from videos.models import Attempt, Skip, Video

def at_once(name, kwargs):  # the broker and the workers are the demo's
    return app.tasks[name].apply(kwargs=kwargs)

app.send_task = at_once
call_command("migrate", verbosity=0)
client = Client(headers={"host": "127.0.0.1"})
sample = Path(settings.DATA_DIR) / "one-second.mp4"
ffmpeg.run(["-f", "lavfi", "-i", "testsrc=size=640x480:rate=10", "-f", "lavfi", "-i", "sine", "-t", "1",
            "-c:v", "libx264", "-c:a", "aac", str(sample)])

def upload(path):
    with path.open("rb") as stream:
        return client.post("/", {"title": "One second", "upload": File(stream, path.name)})

def answer(**found):
    print(json.dumps(found, default=str))
"""

pytestmark = pytest.mark.slow


class Site(NamedTuple):
    """The example, with data and a Redis of its own."""

    environment: dict[str, str]

    def python(self, *arguments: str) -> str:
        """What a process of it prints."""
        return run(sys.executable, "-W", "error", *arguments, cwd=SITE, **self.environment)

    def run(self, script: str) -> Any:
        """What a script inside of it answers."""
        return json.loads(self.python("-c", PRELUDE + script).splitlines()[-1])


@pytest.fixture
def site(tmp_path: Path, redis_server: RedisServer) -> Site:
    names = {
        "DJANGO_SETTINGS_MODULE": "config.settings",
        "DATA_DIR": str(tmp_path),
        "REDIS_URL": f"redis://127.0.0.1:{redis_server.port}",
        "PYTHONPATH": os.pathsep.join([str(SITE), str(ROOT)]),
    }
    return Site(names)


def test_checks_pass_and_no_migration_is_missing(site: Site) -> None:
    assert "no issues" in site.python("manage.py", "check", "--fail-level", "WARNING")
    assert "No changes" in site.python("manage.py", "makemigrations", "--check", "--dry-run")


def test_an_upload_becomes_a_stream_once(site: Site) -> None:
    found = site.run("""
from demokit import streams
uploaded = upload(sample)
video = Video.objects.get()
first = (video.status, video.progress, video.hls_file, video.lock_epoch)
again = tasks.process_video.apply(kwargs={"video_id": video.pk}).get()
video.refresh_from_db()
answer(
    uploaded=uploaded.status_code, first=first, again=again,
    after=(video.status, video.progress, video.hls_file, video.lock_epoch),
    sizes=list(video.renditions.values_list("height", flat=True)),
    outcomes=list(video.attempts.values_list("outcome", flat=True)),
    skips=list(video.skips.values_list("reason", flat=True)),
    wrong=streams.faults(Path(settings.MEDIA_ROOT) / video.hls_file, 1.0),
    left=sorted(path.name for path in (Path(settings.MEDIA_ROOT) / "videos" / "1").iterdir()),
    locked=locks.is_video_locked(video.pk),
    pages=[client.get(page).status_code for page in ("/", "/cards/", "/videos/1/", video.hls_url, video.thumbnail_url)],
    nowhere=client.get("/videos/2/").status_code,
    segment=client.get(video.hls_url.replace("master.m3u8", "240p/0000.ts")).headers["Content-Type"],
)
""")
    row = ["ready", 100, "videos/1/1/master.m3u8", 1]
    assert found.pop("again").items() >= {"status": "skipped", "reason": "invalid_state"}.items()
    assert found == {
        "uploaded": 302,
        "first": row,
        "after": row,
        "sizes": [240, 480],
        "outcomes": ["published"],
        "skips": ["invalid_state"],
        "wrong": [],
        "left": ["1"],
        "locked": False,
        "pages": [200] * 5,
        "nowhere": 404,
        "segment": "video/mp2t",
    }


def test_a_worker_that_was_overtaken_publishes_nothing(site: Site) -> None:
    found = site.run("""
from django.db.models import F
with sample.open("rb") as stream:
    video = Video.objects.create(title="Overtaken", upload=File(stream, sample.name))
real = tasks.transcode

def overtaken(source, target, on_progress):
    stream = real(source, target, on_progress)
    Video.objects.update(lock_token="another", lock_epoch=F("lock_epoch") + 1, progress=7)
    return stream

tasks.transcode = overtaken
error = tasks.process_video.apply(kwargs={"video_id": video.pk}).result
video.refresh_from_db()
answer(error=type(error).__name__, row=(video.status, video.progress, video.hls_file, video.lock_epoch),
       renditions=video.renditions.count(), outcomes=list(video.attempts.values_list("outcome", flat=True)),
       left=[path.name for path in (Path(settings.MEDIA_ROOT) / "videos" / "1").iterdir()])
""")
    row = ["transcoding", 7, None, 2]
    assert found == {"error": "StaleClaim", "row": row, "renditions": 0, "outcomes": ["overtaken"], "left": []}


def test_what_is_not_a_video_fails_and_may_be_tried_again(site: Site) -> None:
    found = site.run("""
broken = Path(settings.DATA_DIR) / "broken.mp4"
broken.write_text("#EXTM3U\\n#EXTINF:10.0,\\nfile:///etc/passwd\\n")  # a playlist in disguise is not opened either
upload(broken)
first = list(Video.objects.values_list("status", "hls_file"))
client.post("/videos/1/process/")
wrong_name = upload(Path(settings.BASE_DIR) / "manage.py")
answer(first=first, outcomes=list(Attempt.objects.values_list("outcome", flat=True)), videos=Video.objects.count(),
       refused="not allowed" in wrong_name.content.decode())
""")
    assert found == {"first": [["failed", None]], "outcomes": ["failed", "failed"], "videos": 1, "refused": True}


def test_limits_and_health(site: Site) -> None:
    """The API is called under its limit, and a transcode has a permit and no connection meanwhile."""
    found = site.run("""
from django.db import connection
from django.test import override_settings
from django_tasklock import ConcurrencyLimiter, RateLimiter
from videos import catalogue
seen = []
real = tasks.transcode

def transcode(*arguments):
    seen.append((ConcurrencyLimiter("transcode", 3).info().used, connection.connection is None))
    return real(*arguments)

tasks.transcode = transcode
upload(sample)
with override_settings(TASKLOCK={**settings.TASKLOCK, "RATE_LIMITS": {"catalogue": "7/d"}}):
    for number in range(7):
        tasks.announce.apply(kwargs={"video_id": number})
    left = RateLimiter("catalogue").try_acquire()
answer(seen=seen, calls=len(catalogue.calls()), left=left,
       health=[client.get(page).json()["status"] for page in ("/health/db", "/health/locks")])
""")
    assert found == {"seen": [[1, True]], "calls": 7, "left": None, "health": ["healthy", "healthy"]}
