"""What is shipped, built as pip builds it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.pages import ROOT

__all__ = ["build", "copied", "run"]

MADE_HERE = shutil.ignore_patterns(
    *(".venv*", ".git", ".tox", ".site", ".demo", ".screenshots", ".*_cache", ".hypothesis", "build", "dist"),
    *("*.egg-info", "__pycache__"),
)


def made_here(folder: str, names: list[str]) -> set[str]:
    """What a run has left in a folder of the project; what CI has kept is in ``.ci/cache``."""
    return MADE_HERE(folder, names) | ({"cache"} if Path(folder).name == ".ci" else set())


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """What a command says, which must succeed."""
    done = subprocess.run(
        command, cwd=cwd, env=os.environ | environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def copied(tree: Path) -> Path:
    """What is kept of this project, in ``tree``."""
    shutil.copytree(ROOT, tree, ignore=made_here)
    return tree


def build(what: str, tree: Path, out: Path) -> Path:
    """``sdist`` or ``wheel`` of ``tree``, by the build backend itself: no network, nothing written here."""
    call = f"import sys; from setuptools import build_meta as b; b.build_{what}(sys.argv[1])"
    run(sys.executable, "-W", "error", "-c", call, out, cwd=tree)
    [made] = out.glob("*.whl" if what == "wheel" else "*.tar.gz")
    return made
