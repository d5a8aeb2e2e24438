"""Fixtures of the tests of imports."""

from pathlib import Path
from typing import Any

import pytest

from tests.extensions.exchange.imports import CONFIG, Row, config_in, lines
from tests.runs import Command, Ended


@pytest.fixture
def take(tmp_path: Path, command: Command) -> Any:
    """Return a function that imports rows, or files that are there, into tmp_path/run."""

    def take(
        source: list[Row] | Path, *options: object, config: str = CONFIG, name: str = "r.jsonl"
    ) -> Ended:
        if isinstance(source, list):
            (tmp_path / name).write_text(lines(source))
            source = tmp_path / name
        words = (config_in(tmp_path, config), source, *options, "--run-dir", tmp_path / "run")
        return command("import", *words)

    return take
