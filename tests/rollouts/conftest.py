"""Fixtures for tests of rollouts."""

from pathlib import Path

import pytest

from tests.rollouts.scoring import Folder


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)
