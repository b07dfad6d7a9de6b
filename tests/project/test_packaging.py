"""What is shipped: built as pip builds it, installed where nothing of this tree can be seen."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from django.core.management import call_command

import django_tasklock

PROJECT = Path(__file__).resolve().parents[2]
PACKAGE = PROJECT / "django_tasklock"
MADE_HERE = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__")


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        command, cwd=cwd, env=os.environ | environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(what: str, tree: Path, out: Path) -> Path:
    """``sdist`` or ``wheel`` of ``tree``, by the build backend itself: no network, nothing written here."""
    call = f"import sys; from setuptools import build_meta as b; b.build_{what}(sys.argv[1])"
    run(sys.executable, "-W", "error", "-c", call, out, cwd=tree)
    [made] = out.glob("*.whl" if what == "wheel" else "*.tar.gz")
    return made


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = tmp_path_factory.mktemp("source") / "tree"
    shutil.copytree(PROJECT, tree, ignore=MADE_HERE)
    return build("sdist", tree, tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    unpacked = tmp_path_factory.mktemp("unpacked")
    run("tar", "-xzf", sdist, cwd=unpacked)
    [tree] = unpacked.iterdir()
    return build("wheel", tree, tmp_path_factory.mktemp("wheel"))


@pytest.mark.slow
def test_the_wheel_holds_the_whole_package_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        shipped = {name for name in archive.namelist() if ".dist-info/" not in name}
    ours = {
        str(path.relative_to(PROJECT))
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert shipped == ours
    assert "django_tasklock/py.typed" in shipped
    assert "django_tasklock/migrations/0001_initial.py" in shipped
    assert any(name.endswith(".lua") for name in shipped)


@pytest.mark.slow
def test_the_sdist_holds_what_a_packager_needs(sdist):
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml", "setup.cfg"} <= names
    assert {"docs/rest.md", "docs/prometheus/alerts.yml", "docs/prometheus/dashboard.json"} <= names


@pytest.mark.slow
def test_the_wheel_works_where_this_tree_cannot_be_seen(wheel, tmp_path):
    home = tmp_path / "venv"
    venv.create(home, with_pip=False)
    python = home / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", home, "install", "--no-deps", "--no-index", wheel, cwd=tmp_path)
    dependencies = sysconfig.get_path("purelib")  # on PYTHONPATH: Django is found, the editable install is not
    code = "import django_tasklock; print(django_tasklock.__file__, django_tasklock.__version__)"
    said = run(python, "-c", code, cwd=tmp_path, PYTHONPATH=dependencies).split()
    assert Path(said[0]).is_relative_to(home)
    assert said[1] == django_tasklock.__version__


def test_importing_the_package_touches_neither_models_nor_celery():
    code = (
        "import sys, django_tasklock; print(sorted({'celery', 'django_tasklock.models', 'django_tasklock.celery'}"
        " & sys.modules.keys()))"
    )
    environment = {"DJANGO_SETTINGS_MODULE": "there.is.none"}
    assert run(sys.executable, "-c", code, cwd=PROJECT, **environment).strip() == "[]"


@pytest.mark.django_db
def test_every_change_of_the_models_has_its_migration():
    call_command("makemigrations", "tasklock", check=True, dry_run=True, verbosity=0)
