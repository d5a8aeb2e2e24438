"""Fixtures for tests of tasks."""

import json
from pathlib import Path

import pytest

from tests.tasks.builders import Row


@pytest.fixture
def jsonl(tmp_path: Path):
    def write(*rows: Row, name: str = "p.jsonl") -> str:
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(path)

    return write
