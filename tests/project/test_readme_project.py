"""The beginning of the README, pasted into a new project in an empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import environment

pytestmark = pytest.mark.redis

ROOT = Path(__file__).parents[2]
FILE = re.compile(r"# ([a-z/]+\.py)\n")


class NewProject:
    """Made by ``startproject`` and ``startapp``; nothing of ours is in it but what the README says."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.runs("-m", "django", "startproject", "site_of_a_stranger", ".")
        self.runs("manage.py", "startapp", "videos")
        self.settings = directory / "site_of_a_stranger" / "settings.py"
        self.adds(self.settings, "INSTALLED_APPS += ['videos']")

    def adds(self, file: Path, code: str) -> None:
        file.write_text(f"{file.read_text() if file.exists() else ''}\n{code}\n")

    def runs(self, *arguments: str) -> str:
        inherited = {key: value for key, value in os.environ.items() if key != "DJANGO_SETTINGS_MODULE"}
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.directory,
            env={**inherited, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def shell(self, code: str) -> str:
        """What it printed, and what was logged."""
        header = (
            "import django, os; os.environ['DJANGO_SETTINGS_MODULE'] = 'site_of_a_stranger.settings'; django.setup()"
        )
        return self.runs("-c", f"{header}\n{code}")


@pytest.fixture
def project(tmp_path: Path) -> NewProject:
    made = NewProject(tmp_path)
    for code in re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL):
        if named := FILE.match(code):
            file = made.settings if named[1] == "settings.py" else tmp_path / named[1]
            made.adds(file, code.replace("redis://localhost:6379/2", os.environ[environment.REDIS]))
    return made


def commands() -> list[str]:
    """What the section "Install" has one type, but for pip."""
    section = (ROOT / "README.md").read_text("utf-8").split("\n## Install\n")[1].split("\n## ")[0]
    return [line.strip() for line in re.findall(r"python (manage\.py [^&\n]*)", section)]


def test_a_new_project(project: NewProject) -> None:
    for command in commands():
        project.runs(*command.split())
    assert "ready 100" in project.shell(
        "from videos.models import Video; from videos.tasks import process_video\n"
        "video = Video.objects.create(); process_video(video.pk); video.refresh_from_db()\n"
        "print(video.status, video.progress)"
    )
    said = project.shell(
        "from django_tasklock import TaskLock\n"
        "from videos.models import Video; from videos.tasks import process_video\n"
        "import threading\n"
        "video = Video.objects.create()\n"
        "with TaskLock(f'video_processing_lock:{video.pk}'):\n"
        "    thread = threading.Thread(target=lambda: print(process_video(video.pk)['reason']))\n"
        "    thread.start(); thread.join()\n"
    )
    assert "already_processing" in said
    assert "skipped: lock 'video_processing_lock:" in said, "the line that the README promises"


def test_it_has_all_that_is_needed() -> None:
    assert commands() == ["manage.py makemigrations videos", "manage.py migrate", "manage.py check"]
