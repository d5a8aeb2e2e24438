"""The study of two methods."""

from pathlib import Path

import pytest

from tests.extensions.lab.study.builders import study_file


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return study_file(tmp_path)
