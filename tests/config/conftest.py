"""Fixtures for tests of configs."""

from pathlib import Path
from typing import Any

import pytest

from mugrpo.config.load import load_config
from tests import cases


@pytest.fixture
def toml(tmp_path: Path):
    """Return a function that writes a config file and returns its path."""

    def write(text: str) -> Path:
        file = tmp_path / "run.toml"
        file.write_text(text)
        return file

    return write


@pytest.fixture
def refusal():
    """Return a function that returns the sentence that refuses a command line."""
    return lambda *overrides, file=None: cases.refusal(load_config, file, overrides)


@pytest.fixture
def required() -> dict[str, dict[str, Any]]:
    """Options without a default, by the choice that has them."""
    return {
        "dataset": {"data": "none.jsonl"},
        "file": {"path": "none.py"},
        "mixture": {"sources": [{"source": "a", "data": "none.jsonl"}]},
        "reasoning-gym": {"data": "chain_sum"},
    }
