"""What is shipped: built as pip builds it, installed where nothing of this tree can be seen."""

from __future__ import annotations

import configparser
import re
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
import yaml
from django.core.management import call_command

import django_tasklock
from tests.support.building import build, copied, run
from tests.support.pages import ROOT as PROJECT

PACKAGE = PROJECT / "django_tasklock"


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("sdist", copied(tmp_path_factory.mktemp("source") / "tree"), tmp_path_factory.mktemp("sdist"))


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
def test_the_sdist_is_whole(sdist):
    """Tests, benchmarks, the example and what CI runs: a packager can do what we do."""
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames() if archive.getmember(name).isfile()}
    made = {".venv", ".tox", ".site", ".git", ".demo", ".screenshots", ".hypothesis", "build", "dist"}
    here = {
        str(path.relative_to(PROJECT))
        for part in ("tests", "benchmarks", "example_project", "docs", ".ci", ".github", "django_tasklock")
        for path in (PROJECT / part).rglob("*")
        if path.is_file()
        and not made & set(path.parts)
        and PROJECT / ".ci" / "cache" not in path.parents
        and "__pycache__" not in path.parts
        and "sqlite3" not in path.name
    }
    assert here - names == set()
    left = {"PKG-INFO", "setup.cfg", "pyproject.toml", "Makefile", "MANIFEST.in"}
    assert {name for name in names - here if "/" not in name} - left == {
        *("LICENSE", "README.md", "README.zh-Hans.md", "CHANGELOG.md", "CONTRIBUTING.md", ".gitignore"),
        *(".mkdocs.yml", ".readthedocs.yaml"),
    }


def test_versions_are_said_once_and_the_newest_is_tried():
    setup = configparser.ConfigParser()
    setup.read(PROJECT / "setup.cfg")
    said = re.findall(r"Programming Language :: Python :: (3\.\d+)", setup["metadata"]["classifiers"])
    run_ = (PROJECT / ".ci" / "run").read_text()
    assert set(re.findall(r"python(3\.\d+)", run_)) == {said[-1]}
    assert setup["metadata"]["version"] == "attr: django_tasklock.__version__"
    assert setup["options"]["python_requires"] == f">={said[0]}"


def test_the_lower_bounds_are_those_of_what_people_install():
    said = run(sys.executable, ".ci/lower-bounds", cwd=PROJECT).split()
    assert {"Django==5.2", "celery==5.5", "django-redis==6.0"} <= set(said)
    assert not [line for line in said if line.startswith(("pytest", "mypy", "tox", "mkdocs"))]


def test_the_files_that_tox_runs_are_there():
    files = (PROJECT / "tests" / "matrix.txt").read_text().split()
    assert files == sorted(files)
    assert [file for file in files if not (PROJECT / file).is_file()] == []


def test_the_workflow_runs_every_part_once():
    run_ = (PROJECT / ".ci" / "run").read_text()
    parts = re.search(r'^known="(.*)"$', run_, re.MULTILINE)[1].split()
    workflow = yaml.safe_load((PROJECT / ".github" / "workflows" / "ci.yml").read_text())
    rows = workflow["jobs"]["part"]["strategy"]["matrix"]["parts"]
    assert sorted(" ".join(rows).split()) == sorted(parts)
    assert set(re.findall(r"\bpart (\w+)(?: &&|;)", run_)) == set(parts)


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


@pytest.mark.django_db
def test_every_change_of_the_models_has_its_migration():
    call_command("makemigrations", "tasklock", check=True, dry_run=True, verbosity=0)
