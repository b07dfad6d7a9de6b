"""The project in which most pages begin."""

from __future__ import annotations

import os

import pytest
import redis

from tests.support import environment
from tests.support.pages import DOCS, Project, blocks_of

__all__ = ["empty_store", "tutorial"]


@pytest.fixture(scope="session")
def tutorial(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The project of the tutorial, before anything is typed into its shell."""
    project = Project(tmp_path_factory.mktemp("tutorial")).start()
    project.paste(block for block in blocks_of(DOCS / "tutorial.md") if block.file)
    return project


@pytest.fixture
def empty_store() -> None:
    """Nothing is held, counted or queued."""
    with redis.Redis.from_url(os.environ[environment.REDIS]) as client:
        client.flushdb()
