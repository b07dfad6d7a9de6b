"""A project of somebody who uses this package, in a directory of its own, and pytest runs in it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
"""Before what is installed: the package whose tests these are."""

__all__ = ["SETTINGS", "blocks", "run_pytest", "write"]

SETTINGS = """
SECRET_KEY = "for tests only"
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "django_tasklock", "shop"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
TASKLOCK = {"LOCATION": "redis://127.0.0.1:1/0"}  # nobody is there: what is not in memory fails
"""


def blocks(page: Path) -> dict[str, str]:
    """The code blocks of a page that begin with the name of a file, by that name."""
    return dict(re.findall(r"^```python\n# (\S+\.py)\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE))


def write(directory: Path, files: Mapping[str, str]) -> None:
    """Write these files, and make packages of their directories."""
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.parent != directory:
            (path.parent / "__init__.py").touch()
        path.write_text(text, "utf-8")


def run_pytest(
    directory: Path, *options: str, settings: str | None = "settings", code: int = 0, **environment: str
) -> str:
    """What pytest says there, in a process that knows nothing of this test run; it must end with ``code``."""
    known = {key: value for key, value in os.environ.items() if not key.startswith(("TASKLOCK_", "PYTEST_", "DJANGO_"))}
    if settings:
        known["DJANGO_SETTINGS_MODULE"] = settings
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-ra", *options],
        cwd=directory,
        env=known | {"PYTHONPATH": f"{directory}{os.pathsep}{ROOT}"} | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr
