"""The beginning of the README, pasted into a new project in an empty folder."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.pages import ROOT, Project, blocks_of, code_of

README = ROOT / "README.md"
SHELL = "import django; django.setup()\n"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = Project(tmp_path).start()
    for block in blocks_of(README):
        if block.file:
            made.add(block.file, block.code)
    return made


def commands() -> list[str]:
    """What the section "Install" has one type, but for pip."""
    code = "".join(code_of(README, "Install", "console"))
    return [line.strip() for line in re.findall(r"python (manage\.py [^&\n]*)", code)]


@pytest.mark.slow
def test_a_new_project(project: Project) -> None:
    for command in commands():
        project.run(*command.split())
    assert "ready 100" in project.run(
        "-c",
        SHELL + "from videos.models import Video; from videos.tasks import process_video\n"
        "video = Video.objects.create(); process_video(video.pk); video.refresh_from_db()\n"
        "print(video.status, video.progress)",
    )
    said = project.run(
        "-c",
        SHELL + "from django_tasklock import TaskLock\n"
        "from videos.models import Video; from videos.tasks import process_video\n"
        "import threading\n"
        "video = Video.objects.create()\n"
        "with TaskLock(f'video_processing_lock:{video.pk}'):\n"
        "    thread = threading.Thread(target=lambda: print(process_video(video.pk)['reason']))\n"
        "    thread.start(); thread.join()\n",
    )
    assert "already_processing" in said
    assert "skipped: lock 'video_processing_lock:" in said, "the line that the README promises"


def test_both_languages_have_the_same_code() -> None:
    """But for comments."""
    english, chinese = (
        [ast.dump(ast.parse(code)) for code in code_of(ROOT / f"README{name}.md")] for name in ("", ".zh-Hans")
    )
    assert english == chinese
    assert code_of(README, language="console")[1:] == code_of(ROOT / "README.zh-Hans.md", language="console")[1:]


@pytest.mark.parametrize("page", ["README.md", "docs/tutorial.md"])
def test_a_worker_prints_each_of_our_lines_once(page: str) -> None:
    """Celery's own handler is the root logger's; ours is that of the ``LOGGING`` in the page."""
    (settings,) = re.findall(r"^LOGGING = \{.*?^\}", (ROOT / page).read_text("utf-8"), re.DOTALL | re.MULTILINE)
    worker = (
        f"import logging.config\n{settings}\nlogging.config.dictConfig(LOGGING)\n"
        "from celery import Celery\nCelery('pages', broker='memory://').log.setup(loglevel='INFO')\n"
        "for name in ('django_tasklock', 'videos'): logging.getLogger(name).info('a line of %s', name)\n"
    )
    run = subprocess.run([sys.executable, "-c", worker], capture_output=True, text=True, check=True, timeout=120)
    printed = run.stdout + run.stderr
    assert printed.count("a line of videos") == 1, "Celery's handler prints the others"
    assert printed.count("a line of django_tasklock") == 1
