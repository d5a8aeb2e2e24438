"""A suite of chain problems, which the embedded model solves about a quarter of."""

import json
from pathlib import Path

import pytest

from mugrpo.tasks.embedded import running_states
from tests.tasks.conftest import jsonl  # noqa: F401

PROMPTS = [f"{a}+{b}-1+{c}+2-1+{b}-2=" for a in (1, 2, 3) for b in (1, 2) for c in (1, 3)]  # 12

SUITE = """
title = "Short chains"
samples = 4
max_new_tokens = 48
task = {{ data = "{data}", rewards = [{{ name = "regex", pattern = "=(\\\\d)$" }}] }}
prompt = {{ form = "plain" }}
conventions = {{ samples = "chosen for this test" }}
"""


def suite_in(folder: Path, problems: int = 12) -> Path:
    """Write a suite with some problems and 4 samples into `folder`. Return its file."""
    rows = [{"prompt": p, "answer": str(running_states(p)[-1])} for p in PROMPTS[:problems]]
    data = folder / "problems.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    file = folder / "short.toml"
    file.write_text(SUITE.format(data=data))
    return file


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    return suite_in(tmp_path)
